"""cuGetProcAddress under the gate: the driver's answer, with our hooks in place of its functions.

The fake driver gives out other functions than it exports. They allocate at addresses by which they
can be told: 1000 and 4000 are exported, 2000, 3000, 5000 and 6000 are given out.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from .support import Programs, run_gated


def answers(programs: Programs, folder: Path | None, *asked: tuple[str, int, int]) -> list[str]:
    words = [str(word) for row in asked for word in row]
    variables = {"VRAMKIT_GATE_DRIVER": programs.fake_driver}
    if folder is not None:
        variables["VRAMKIT_GATE_TRACE"] = folder
    done = run_gated(programs.calls, "resolve", *words, **variables)
    assert done.returncode == 0
    return done.stdout.splitlines()


# What is asked for, and: result, status, whose function it is, what it allocates.
WHILE_RECORDING = [
    (("cuMemAlloc", 12000, 0), "0 0 gate 1000"),
    (("cuMemAlloc", 3020, 2), "0 0 gate 1000"),
    (("cuMemAllocAsync", 12000, 1), "0 0 gate 4000"),
    # Per-thread form: exported by no name, so that the hook calls what was given out.
    (("cuMemAllocAsync", 12000, 2), "0 0 gate 6000"),
    # Another call under a name of its own: as cuGraphInstantiate is since 12.0.
    (("cuRenamedAlloc", 12000, 0), "0 0 gate 0"),
    # A version that we do not know may have other parameters.
    (("cuMemAlloc", 14000, 0), "0 0 fake 3000"),
    (("cuOfTheFuture", 13000, 0), "0 0 fake 0"),
    # The driver's own refusals: no such name, none for this version, a bad argument.
    (("cuNoSuchCall", 12000, 0), "0 1 - 0"),
    (("cuMemAlloc", 2000, 0), "0 2 - 0"),
    (("cuMemAlloc", 99000, 0), "1 -1 - 0"),
]


def test_hooks_are_given_out_in_the_version_and_form_of_the_driver(
    programs: Programs, tmp_path: Path
) -> None:
    asked, expected = zip(*WHILE_RECORDING, strict=True)
    assert answers(programs, tmp_path, *asked) == list(expected)


def test_without_a_recording_the_drivers_functions_are_given_out(programs: Programs) -> None:
    asked = [("cuMemAlloc", 12000, 0), ("cuMemAllocAsync", 12000, 2)]
    assert answers(programs, None, *asked) == ["0 0 fake 2000", "0 0 fake 6000"]


@pytest.mark.sim_only
def test_the_resolvers_themselves_are_hooked(programs: Programs) -> None:
    words = ["cuGetProcAddress", "12000", "0", "cuGetProcAddress", "11030", "0"]
    done = run_gated(programs.calls, "resolve", *words, VRAMKIT_DRIVER="sim")
    assert done.stdout == "0 0 gate 0\n0 0 gate 0\n"


def test_the_older_resolver(programs: Programs, tmp_path: Path) -> None:
    done = run_gated(
        programs.calls,
        "resolve_old",
        VRAMKIT_GATE_DRIVER=programs.fake_driver,
        VRAMKIT_GATE_TRACE=tmp_path,
    )
    assert done.stdout == "0 gate 500\n"
