"""What the benchmark of frameworks publishes of a process that failed."""

import pytest


@pytest.mark.parametrize(
    ("said", "published"),
    [
        ("", ""),
        ('Traceback:\n  File "/home/me/x.py", line 3\nMemoryError\n\n', "MemoryError"),
        ("OSError: /usr/lib/libx.so.1: cannot open", "OSError: libx.so.1: cannot open"),
        ("ImportError: '/opt/env/lib/y.so' and (/srv/z.so)", "ImportError: 'y.so' and (z.so)"),
        ("FileNotFoundError: ~/data/w.bin", "FileNotFoundError: w.bin"),
        ("ValueError: 3 / 4 of 5 MiB/s and/or n/a", "ValueError: 3 / 4 of 5 MiB/s and/or n/a"),
    ],
)
def test_only_the_last_line_is_published_and_no_folders(said: str, published: str) -> None:
    from frameworks_rows import last_words

    assert last_words(said) == published
