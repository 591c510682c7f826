"""What is recorded of a program, however it runs and ends."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from .support import Programs, Run, run_recorded

pytestmark = pytest.mark.sim_only


def test_blocks_of_a_linked_program_and_its_output_is_its_own(
    programs: Programs, tmp_path: Path
) -> None:
    run = run_recorded(tmp_path, programs.allocates, "pairs")
    assert (run.returncode, run.stdout, run.stderr) == (5, "out\n", "err")
    assert run.only.lines == [
        "context,0,0,0,cuDevicePrimaryCtxRetain",
        "+0,4096,0,0,0,0,cuMemAlloc_v2",
        "-0,0,0,0,cuMemFree_v2",
        "+1,8192,0,0,0,0,cuMemAlloc_v2",
        "-1,0,0,0,cuMemFree_v2",
        "+2,1048576,0,0,0,0,cuMemAlloc_v2",
        "done,device,0,0,0,cuCtxSynchronize",
    ]
    assert run.only.complete


def test_a_killed_program_loses_nothing(programs: Programs, tmp_path: Path) -> None:
    run = run_recorded(tmp_path, programs.allocates, "killed")
    assert run.returncode == -signal.SIGKILL
    assert run.only.blocks == 5000
    assert len(run.only.starting("-")) == 5000


def test_threads_at_the_same_time(programs: Programs, tmp_path: Path) -> None:
    recorded = run_recorded(tmp_path, programs.allocates, "threads").only
    assert recorded.blocks == 800
    assert len(recorded.starting("-")) == 800
    assert recorded.threads == 9
    # Merged by time, no block is handed out before it was freed.
    assert not [line for line in recorded.lines if line.endswith("unseen")]


def test_threads_that_end_leave_their_room_to_others(programs: Programs, tmp_path: Path) -> None:
    recorded = run_recorded(tmp_path, programs.allocates, "thread_after_thread").only
    assert (recorded.blocks, recorded.threads) == (4000, 41)
    (file,) = tmp_path.iterdir()
    # 8,000 records are 8 chunks; one for each thread would have been 41.
    assert file.stat().st_size <= 4096 + 10 * 65536


def test_a_fork_before_cuda_gives_two_traces(programs: Programs, tmp_path: Path) -> None:
    run = run_recorded(tmp_path, programs.allocates, "fork_first")
    assert sorted(process.blocks for process in run.processes) == [2, 3]


def test_a_fork_after_cuda_keeps_the_parents_trace_whole(
    programs: Programs, tmp_path: Path
) -> None:
    run = run_recorded(tmp_path, programs.allocates, "fork_after")
    parent, child = run.processes
    assert (parent.blocks, len(parent.starting("-"))) == (3, 3)
    # The driver refuses the child, which is recorded too.
    assert (child.blocks, len(child.starting("failed,"))) == (0, 1)


def test_a_program_that_is_replaced_by_another_has_two_traces(
    programs: Programs, tmp_path: Path
) -> None:
    run = run_recorded(tmp_path, programs.allocates, "exec")
    assert run.returncode == 5
    assert [process.blocks for process in run.processes] == [1, 3]
    assert len({process.process for process in run.processes}) == 1


def test_a_program_may_close_all_descriptors(programs: Programs, tmp_path: Path) -> None:
    """The trace has none open. The simulated GPU has, hence the other driver."""
    driver = programs.fake_driver
    run = run_recorded(tmp_path, programs.allocates, "descriptors", VRAMKIT_GATE_DRIVER=driver)
    assert run.only.blocks == 2001


def test_each_thread_has_a_default_stream(programs: Programs, tmp_path: Path) -> None:
    recorded = run_recorded(tmp_path, programs.allocates, "default_streams").only
    assert recorded.starting("+", "-", "done") == [
        "+0,1000,1,1,0,0,cuMemAllocAsync",
        "done,stream,1,1,0,cuStreamSynchronize",
        "-0,1,1,0,cuMemFreeAsync",
        "+1,1000,2,0,0,0,cuMemAllocAsync",
        "done,stream,2,0,0,cuStreamSynchronize",
        "-1,2,0,0,cuMemFreeAsync",
    ]


def test_a_new_stream_is_a_new_number(programs: Programs, tmp_path: Path) -> None:
    recorded = run_recorded(tmp_path, programs.allocates, "streams").only
    assert [line.split(",")[2] for line in recorded.starting("+")] == ["1", "2"]


def test_blocks_end_with_their_context(programs: Programs, tmp_path: Path) -> None:
    recorded = run_recorded(tmp_path, programs.allocates, "released").only
    assert recorded.starting("+", "-") == [
        "+0,5000,0,0,0,0,cuMemAlloc_v2",
        "-0,0,0,0,cuDevicePrimaryCtxRelease_v2",
    ]


# On the fake driver: what the simulated GPU lacks, or what has to happen at a certain moment


def on_fake_driver(programs: Programs, folder: Path, scenario: str) -> Run:
    driver = programs.fake_driver
    run = run_recorded(folder, programs.calls, scenario, VRAMKIT_GATE_DRIVER=driver)
    assert (run.returncode, run.stderr) == (0, "")
    return run


def test_other_kinds_of_allocations_and_launches(programs: Programs, tmp_path: Path) -> None:
    run = on_fake_driver(programs, tmp_path, "rare")
    assert run.stdout == "2 801\n"  # refused, and not in this driver
    assert run.only.lines == [
        "+0,5120,0,0,0,0,cuMemAllocPitch_v2",  # as wide as the driver made it
        "+1,4096,0,0,0,0,cuMemAllocManaged",
        "failed,0,0,0,0,0,cuMemAllocManaged,2",
        "launch,3,0,0,0,cuLaunchCooperativeKernel",
        "-0,0,0,0,cuMemFree_v2",
    ]


def test_launches_are_counted_together_but_not_past_a_wait(
    programs: Programs, tmp_path: Path
) -> None:
    assert on_fake_driver(programs, tmp_path, "launches").only.lines == [
        "launch,2,1,0,0,cuLaunchKernel",
        "done,stream,1,0,0,cuStreamSynchronize",
        "launch,3,1,0,0,cuLaunchKernel",
        "launch,3,2,0,0,cuLaunchKernel",
    ]


def test_what_goes_into_a_graph_has_not_happened(programs: Programs, tmp_path: Path) -> None:
    assert on_fake_driver(programs, tmp_path, "captures").only.lines == [
        "captured,cuMemAllocAsync,64,1,0,0",
        "captured,cuMemFreeAsync,0,1,0,0",
        "+0,64,2,0,0,0,cuMemAllocAsync",
        "launch,1,2,0,0,cuLaunchKernel",
        "event,0,2,0,0",
        "-0,2,0,0,cuMemFreeAsync",
    ]


def test_an_address_is_free_before_another_thread_gets_it(
    programs: Programs, tmp_path: Path
) -> None:
    assert on_fake_driver(programs, tmp_path, "reuse").only.lines == [
        "+0,64,0,0,0,0,cuMemAlloc_v2",
        "-0,0,1,0,cuMemFree_v2",
        "+1,128,0,0,0,0,cuMemAlloc_v2",
    ]


def test_a_file_that_may_not_grow_ends_the_trace_and_not_the_program(
    programs: Programs, tmp_path: Path
) -> None:
    limited = f"ulimit -f 150 && exec {programs.allocates} killed"  # blocks of 512 or 1,024 bytes
    run = run_recorded(tmp_path, "sh", "-c", limited, VRAMKIT_GATE_DRIVER=programs.fake_driver)
    assert run.returncode == -signal.SIGKILL  # its own, and not SIGXFSZ
    assert not run.only.complete
    assert 400 < run.only.blocks < 5000


def test_a_file_that_may_have_no_content(programs: Programs, tmp_path: Path) -> None:
    limited = f"ulimit -f 0 && exec {programs.allocates} pairs"
    # The simulated GPU keeps its memory in a file, hence the other driver.
    run = run_recorded(tmp_path, "sh", "-c", limited, VRAMKIT_GATE_DRIVER=programs.fake_driver)
    assert (run.returncode, run.stdout, run.stderr) == (5, "out\n", "err")
    assert (run.only.complete, run.only.lines) == (False, [])


def test_a_folder_that_cannot_be_written_does_no_harm(programs: Programs, tmp_path: Path) -> None:
    run = run_recorded(tmp_path / "missing", programs.allocates, "pairs")
    assert (run.returncode, run.stdout, run.stderr) == (5, "out\n", "err")
    assert run.processes == []
