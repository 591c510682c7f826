"""The peak of host memory since a point in time."""

import mmap

import pytest

MIB = 1 << 20


def filled(nbytes: int) -> mmap.mmap:
    memory = mmap.mmap(-1, nbytes)
    memory.write(b"x" * nbytes)
    return memory


def test_an_earlier_peak_does_not_count() -> None:
    from peak_memory import PeakMemory

    filled(256 * MIB).close()
    peak = PeakMemory()
    filled(32 * MIB).close()
    more = peak.more()
    if more is None:
        pytest.skip("the kernel's peak cannot be reset here")
    assert 32 * MIB <= more < 128 * MIB


def test_without_a_reset_there_is_no_figure(monkeypatch) -> None:
    import peak_memory

    lines = {"VmHWM": 900 * MIB, "VmRSS": 100 * MIB}
    monkeypatch.setattr(peak_memory, "_status", lines.__getitem__)
    assert peak_memory.PeakMemory().more() is None
