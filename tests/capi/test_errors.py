"""What the C functions say of bad input, as a C99 program sees it."""

from __future__ import annotations

from pathlib import Path

import pytest

import vramkit

from .support import C99, PROGRAMS, output_of

pytestmark = pytest.mark.sim_only

OK, BAD_VALUE, CLOSED, OUT_OF_MEMORY, DRIVER, NO_DRIVER = 0, 1, 2, 4, 5, 6

# Status, and how the text begins, by the name that the program gives the case.
EXPECTED = {
    "limit": (BAD_VALUE, "limit is 1; it may be 0 for none, or 2 MiB (one page) or more"),
    "batch": (BAD_VALUE, "batch_alloc_count is 0; it may be 1 or more"),
    "flag": (BAD_VALUE, "enable_stats is 5; it may be 0 or 1"),
    "no defrag": (BAD_VALUE, "defrag_threshold has no effect without enable_defrag"),
    "nothing moves": (BAD_VALUE, "defrag_interval_ms has no effect with nvtx"),
    "no cache": (BAD_VALUE, "thread_cache_max_blocks has no effect with cache_bytes=0"),
    "no blocks": (BAD_VALUE, "thread_cache_bytes has no effect with thread_cache_max_blocks=0"),
    "cache of a stream": (BAD_VALUE, "cache_bytes is 1099511627776 for one stream, but a thread"),
    "aligned": (BAD_VALUE, "alignment has no effect on classes of powers of two"),
    "nvtx": (BAD_VALUE, "nvtx needs a limit: "),
    "size": (BAD_VALUE, "the options have a size of "),
    "device": (DRIVER, "cuDeviceGet: CUDA_ERROR_INVALID_DEVICE, "),
    "older options": (OK, ""),
    "destroy": (OK, ""),
    "create": (OK, ""),
    "0 bytes": (BAD_VALUE, "a block has 1 to "),
    "no pool": (BAD_VALUE, "the pool is NULL"),
    "no stream": (DRIVER, "cuStreamGetId: CUDA_ERROR_INVALID_CONTEXT, "),
    "too much": (OUT_OF_MEMORY, "out of device memory: asked for 8388608 bytes (8 MiB)."),
    "try too much": (OUT_OF_MEMORY, "out of device memory: asked for 8388608 bytes (8 MiB)."),
    "malloc": (OK, ""),
    "inside": (BAD_VALUE, "the pointer lies inside a block"),
    "foreign": (BAD_VALUE, "the pointer is not of this pool"),
    "in use": (BAD_VALUE, "the pool cannot close: 1000 bytes are still in use"),
    "destroy in use": (BAD_VALUE, "the pool cannot close: 1000 bytes are still in use"),
    "stats": (OK, ""),
    "usage 1000": None,
    "stats of no size": (BAD_VALUE, "stats must point at a vramkit_stats whose size is set"),
    "free": (OK, ""),
    "free twice": (BAD_VALUE, "the block is not in use: freed twice?"),
    "also used, freed": (BAD_VALUE, "the block is not in use: freed twice?"),
    "free NULL": (OK, ""),
    "default stream": (BAD_VALUE, "a default stream cannot be destroyed"),
    "close": (OK, ""),
    "close twice": (OK, ""),
    "malloc closed": (CLOSED, "the pool is closed"),
    "free closed": (CLOSED, "the pool is closed"),
    "trim closed": (CLOSED, "the pool is closed"),
    "preallocate closed": (CLOSED, "the pool is closed"),
    "defragment closed": (CLOSED, "the pool is closed"),
    "step closed": (CLOSED, "the pool is closed"),
    "destroy closed": (OK, ""),
    "destroy NULL": (OK, ""),
    "destroy instance": (BAD_VALUE, "the process-wide pool is everybody's"),
}


def test_each_mistake_has_one_status_and_one_text(tmp_path: Path) -> None:
    first, *said = output_of(
        PROGRAMS / "errors.c", *C99, folder=tmp_path, VRAMKIT_DRIVER="sim", VRAMKIT_SIM=""
    )
    assert first == f"version {vramkit.__version__}, last error ''"
    assert [line.partition(":")[0] for line in said] == list(EXPECTED)
    for line, expected in zip(said, EXPECTED.values(), strict=True):
        if expected is not None:
            status, text = expected
            assert line.partition(": ")[2].startswith(f"{status} {text}"), line
            assert (status == OK) == line.endswith(": 0 "), line


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("simm", f"{BAD_VALUE} VRAMKIT_DRIVER is 'simm'; it may be cuda, sim or sim:PROFILE"),
        ("sim:", f"{BAD_VALUE} VRAMKIT_DRIVER is 'sim:'"),
        ("sim:nowhere", f"{BAD_VALUE} "),
        ("sim:pcie4-24gb", f"{OK} The card has 24542 MiB of 24564 MiB free."),
        ("sim", f"{OK} The card has 143738 MiB of 143770 MiB free."),
    ],
)
def test_the_environment_names_the_driver(tmp_path: Path, spec: str, said: str) -> None:
    """Twice, with the same answer: a profile that was refused is not forgotten."""
    lines = output_of(
        PROGRAMS / "opening.c", *C99, folder=tmp_path, VRAMKIT_DRIVER=spec, VRAMKIT_SIM="data=off"
    )
    assert len(lines) == 2
    assert lines[0] == lines[1]
    assert lines[0].startswith(said)


def test_nothing_is_simulated_unless_asked_for(tmp_path: Path) -> None:
    """Where there is no NVIDIA driver: with one, the program finds the card."""
    lines = output_of(PROGRAMS / "opening.c", *C99, folder=tmp_path)
    if not lines[0].startswith(f"{OK} "):
        assert lines[0].startswith(f"{NO_DRIVER} ")
        assert "choose the simulated one: VRAMKIT_DRIVER=sim." in lines[0]
