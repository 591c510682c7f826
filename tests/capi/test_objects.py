"""vramkit.hpp: objects that clean up, and what must not compile."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .support import CPP17, PROGRAMS, compiled, output_of

pytestmark = pytest.mark.sim_only

CONTAINER = """
#include <vector>
#include "vramkit.hpp"
int main() {{
    vramkit::pool pool;
    vramkit::stl_allocator<float> allocator(pool);
    std::vector<float, vramkit::stl_allocator<float>> values(10, allocator);
    {}
}}
"""
NO_HOST_WRITES = "the host cannot write device memory: fill it by a copy or a kernel"


@pytest.mark.parametrize("standard", ["c++17", "c++20"])
def test_objects(tmp_path: Path, standard: str) -> None:
    reports = tmp_path / "reports"
    said = output_of(
        PROGRAMS / "objects.cpp",
        *CPP17,
        f"-std={standard}",
        folder=tmp_path,
        VRAMKIT_DRIVER="sim",
        VRAMKIT_SIM=f"reports={reports}",
    )
    assert said == ["done"]
    (written,) = tmp_path.glob("reports.*")
    assert json.loads(written.read_text(encoding="utf-8"))["reports"] == []


@pytest.mark.parametrize(
    ("statement", "refused"),
    [
        ("values.clear();", False),
        ("values.push_back(1);", True),
        ("values.resize(20);", True),
        ("values.assign(20, 1.0f);", True),
        ("auto copy = values;", True),
        ("std::vector<float, vramkit::stl_allocator<float>> ones(10, 1.0f, allocator);", True),
    ],
)
def test_a_container_that_would_write_on_the_host_does_not_compile(
    tmp_path: Path, statement: str, refused: bool
) -> None:
    source = tmp_path / "container.cpp"
    source.write_text(CONTAINER.format(statement), encoding="utf-8")
    built = compiled(source, *CPP17, folder=tmp_path)
    assert (built.returncode != 0, NO_HOST_WRITES in built.stderr) == (refused, refused), (
        built.stderr
    )
