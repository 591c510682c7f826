"""The example in C++ builds with the flags of its README and does what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from .support import CPP17, output_of

EXAMPLE = Path(__file__).parents[2] / "examples" / "cpp" / "pool.cpp"

pytestmark = pytest.mark.sim_only


def test_example(tmp_path: Path) -> None:
    settings = "capacity=256MiB"
    said = output_of(EXAMPLE, *CPP17, folder=tmp_path, VRAMKIT_DRIVER="sim", VRAMKIT_SIM=settings)
    assert len(said) == 2
    counted, refused = said
    # What was mapped with the pool is enough; its thread may have mapped some ahead by then.
    assert counted in [
        f"3000 allocations, memory taken from the driver {times} times, 0 bytes in use"
        for times in (1, 2)
    ]
    assert refused.startswith(f"out of device memory: asked for {1 << 40} bytes (1048576 MiB).")
