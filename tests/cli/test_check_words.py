"""Reports in words, and native places as source lines."""

from __future__ import annotations

import subprocess
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from vramkit.check.addresses import Resolver
from vramkit.check.collect import collect
from vramkit.check.result import CheckedProcess, CheckResult
from vramkit.check.words import TITLES, blocks, conflict, deed, summary
from vramkit.driver import Report, Site
from vramkit.report.blocks import Table
from vramkit.report.terminal import print_block


def site(call: str, stream: int | None, access: str, **places: object) -> Site:
    return Site(
        call=call,
        stream=stream,
        access=access,  # type: ignore[arg-type]
        thread="thread 1 (main)",
        location=str(places.get("location", "main+0x10 (/bin/program+0x1234)")),
        frames=list(places.get("frames", [])),  # type: ignore[call-overload]
    )


def report(kind: str = "race", severity: str = "error", count: int = 1) -> Report:
    return Report(
        kind=kind,  # type: ignore[arg-type]
        severity=severity,  # type: ignore[arg-type]
        address=0x7000,
        nbytes=4096,
        first=site("cuMemcpyHtoDAsync_v2_ptsz", 3, "write", frames=["a.py:1 in f", "a.py:9 in g"]),
        second=site("cuMemcpyDtoH_v2", None, "read"),
        advice="Record an event.",
        count=count,
    )


def test_both_sides_are_told_with_their_places() -> None:
    block = conflict(report(count=7))
    assert block.title == "Race (error)"
    assert "4 KiB at 0x7000" in block.what and "Seen 7 times" in block.what
    first, second = block.sides
    assert first == (
        "`cuMemcpyHtoDAsync` writes on stream 3, called from thread 1 (main)",
        "a.py:1 in f\na.py:9 in g",
    )
    assert second[0].startswith("`cuMemcpyDtoH` reads on the host")
    assert second[1] == "main+0x10 (/bin/program+0x1234)"
    assert block.fix == "Record an event."


def test_what_a_pool_tells_has_the_name_of_its_own_call() -> None:
    assert deed(site("simBlockAlloc", 2, "alloc")).startswith("`pool malloc` allocates on stream 2")


def test_a_report_with_one_side_has_no_first(capsys: pytest.CaptureFixture[str]) -> None:
    print_block(Console(width=100), conflict(report("deadlock")))
    words = capsys.readouterr().out.split()
    assert "call" in words and "first" not in words


@pytest.mark.parametrize("kind", TITLES)
def test_every_kind_has_words_of_its_own(kind: str) -> None:
    block = conflict(report(kind))
    assert block.title == f"{TITLES[kind]} (error)"
    assert "{" not in block.what


def result(*reports: Report, status: int = 0, calls: int = 5) -> CheckResult:
    process = CheckedProcess(pid=1, program="p", settings={}, reports=list(reports), calls=calls)
    return CheckResult(
        program=["p"], program_status=status, signal=None, profile="h200", processes=[process]
    )


@pytest.mark.parametrize(
    ("checked", "strict", "verdict", "status"),
    [
        (result(), False, "clean", 0),
        (result(report()), False, "reports", 1),
        (result(report(severity="warning")), False, "clean", 0),
        (result(report(severity="warning")), True, "reports", 1),
        (result(status=42), False, "program_failed", 42),
        (result(report(), status=42), False, "reports", 1),
        (result(report(severity="warning"), status=42), False, "program_failed", 42),
        (result(calls=0), False, "nothing_checked", 3),
        (result(status=42, calls=0), False, "program_failed", 42),
    ],
)
def test_verdict_and_exit_status(
    checked: CheckResult, strict: bool, verdict: str, status: int
) -> None:
    assert checked.verdict(warnings_as_errors=strict) == verdict
    assert checked.status(warnings_as_errors=strict) == status
    told_apart = checked.status(warnings_as_errors=strict, error_exitcode=99)
    assert told_apart == (99 if verdict == "reports" else status)
    own = checked.status(warnings_as_errors=strict, error_exitcode=0)
    assert own == checked.program_status


def test_the_summary_says_whose_status_it_is() -> None:
    assert summary(result(), 0) == ["no report; 5 driver calls on a simulated card, profile h200"]
    assert summary(result(status=42), 42)[-1] == (
        "the program ended with status 42; passed on as the exit status"
    )
    assert summary(result(report()), 1)[-1] == (
        "the program ended with status 0; the exit status of the check is 1"
    )


def located(**fields: object) -> dict[str, object]:
    return {"thread": "thread 1 (main)", "location": "a.py:3 in f", "frames": [], **fields}


def document(**fields: object) -> bytes:
    """What a process writes, as the simulated GPU does."""
    facts = {"pid": 7, "program": "p", "settings": {}, "reports": [], "calls": 5, **fields}
    return msgspec.json.encode(facts)


def collected(folder: Path, text: bytes) -> CheckResult:
    (folder / "reports.7.1").write_bytes(text)
    return msgspec.structs.replace(result(), processes=collect(folder / "reports"))


def test_unsupported_calls_are_named_with_their_counts(tmp_path: Path) -> None:
    missing = located(call="cuCoolNewCall", reason="missing", count=2)
    refused = located(call="cuMemAdvise_v2", reason="not_supported", count=3000)
    checked = collected(tmp_path, document(unsupported=[missing, refused]))
    [table] = blocks(checked)
    assert isinstance(table, Table)
    assert table.title.startswith("Driver calls that the simulated GPU does not support")
    assert table.rows == [["`cuMemAdvise`", "3,000", "a.py:3 in f"]]
    assert checked.verdict(warnings_as_errors=True) == "clean"


def test_calls_that_were_looked_up_in_vain_are_named_where_the_program_failed(
    tmp_path: Path,
) -> None:
    """NVIDIA's bindings look up every call of the driver when they are loaded."""
    missing = [located(call=f"cuNew{n}", reason="missing", count=1) for n in range(10)]
    checked = collected(tmp_path, document(unsupported=missing))
    assert blocks(checked) == [] and len(summary(checked, 0)) == 1
    failed = msgspec.structs.replace(checked, program_status=1)
    assert summary(failed, 1)[1] == (
        "the simulated GPU lacks calls that the program looked up (cuGetProcAddress): "
        "cuNew0, cuNew1, cuNew2, cuNew3, cuNew4, cuNew5, cuNew6, cuNew7 and 2 more"
    )


def test_memory_left_open_is_named_as_that_the_largest_first(tmp_path: Path) -> None:
    small = located(call="cuMemHostAlloc", nbytes=4096, count=1)
    large = located(call="cuMemAlloc_v2", nbytes=8 << 20, count=2)
    checked = collected(tmp_path, document(left_open=[small, large]))
    [table] = blocks(checked)
    assert isinstance(table, Table)
    assert table.title == "Memory not freed when the program ended"
    assert table.rows == [
        ["8 MiB", "`cuMemAlloc`", "2", "a.py:3 in f"],
        ["4 KiB", "`cuMemHostAlloc`", "1", "a.py:3 in f"],
    ]
    assert checked.verdict(warnings_as_errors=True) == "clean"


def test_reports_that_were_left_out_are_counted(tmp_path: Path) -> None:
    written = msgspec.to_builtins([report()])
    checked = collected(tmp_path, document(reports=written, left_out=2000))
    assert (checked.errors, checked.left_out) == (1, 2000)
    assert summary(checked, 1)[0].startswith(
        "1 error, 0 warnings and 2,000 more reports left out; 5 driver calls"
    )


def test_errors_are_listed_before_warnings() -> None:
    checked = result(report(severity="warning"), report())
    assert [one.severity for one in checked.reports] == ["error", "warning"]
    assert (checked.errors, checked.warnings) == (1, 1)


def test_places_are_resolved_at_the_call_before_the_return_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for addr2line answers with the addresses it was asked for."""
    tool = tmp_path / "addr2line"
    tool.write_text(
        "#!/bin/sh\nshift 3; module=$1; shift\n"
        'for address in "$@"; do\n'
        "  if [ $address = 0xff ]; then echo '??'; echo '??:0'\n"
        '  else echo "function_$address"; echo "$module.cpp:12 (discriminator 3)"; fi\n'
        "done\n"
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    known, unknown, other = "f+0x2 (/lib/a (1).so+0x200)", "(/lib/a (1).so+0x100)", "a.py:3 in f"
    resolver = Resolver([known, unknown, other, known])
    assert resolver.resolve(known) == "/lib/a (1).so.cpp:12 in function_0x1ff"
    assert resolver.resolve(unknown) == unknown
    assert resolver.resolve(other) == other


def test_without_addr2line_places_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(subprocess, "run", None)
    assert Resolver(["f+0x2 (/lib/a.so+0x200)"]).resolve("f+0x2 (/lib/a.so+0x200)") == (
        "f+0x2 (/lib/a.so+0x200)"
    )
