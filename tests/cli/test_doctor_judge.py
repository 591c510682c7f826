"""Verdicts of the doctor over made-up machines."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from vramkit.doctor.facts import (
    Card,
    CopyRate,
    DriverFacts,
    Examination,
    Finding,
    Limits,
    Link,
    Pinning,
    Spread,
)
from vramkit.doctor.judge import judge
from vramkit.doctor.missing import missing_driver, refusing_driver

GIB = 1 << 30
LIMITS = Limits(
    cpus=16,
    ram_total=512 * GIB,
    ram_available=500 * GIB,
    memory_limit=None,
    memory_limit_source="no cgroup limit",
    locked_memory=None,
    address_space=None,
    transparent_huge_pages="madvise",
    huge_pages_free=0,
    huge_page_bytes=2 << 20,
    shared_memory_total=256 * GIB,
    shared_memory_free=256 * GIB,
    overcommit=0,
)
LINK = Link(generation=5, width=16, max_generation=5, max_width=16, source="NVML")
CARD = Card(
    ordinal=0,
    name="a card",
    uuid="GPU-1",
    pci_bus_id="0000:01:00.0",
    compute_capability=(9, 0),
    multiprocessors=132,
    memory_total=140 * GIB,
    memory_free=139 * GIB,
    profile_memory=None,
    link=LINK,
)
DRIVER = DriverFacts(
    kind="cuda",
    simulated=False,
    profile=None,
    path="/usr/lib/libcuda.so.1",
    version=13000,
    description="NVIDIA",
    nvidia_version="580.1",
)


def copies(inward: float, outward: float, both: float) -> list[CopyRate]:
    ways = (
        ("pinned, host to device", inward, False),
        ("pinned, device to host", outward, False),
        ("pinned, both ways at once", both, True),
    )
    return [
        CopyRate(what=what, nbytes=1, each_way=each_way, rate=Spread(rate, rate, rate, 1))
        for what, rate, each_way in ways
    ]


GOOD = Examination(
    vramkit="0",
    date="2026-01-01",
    machine="a machine",
    limits=LIMITS,
    driver=DRIVER,
    card=CARD,
    copies=copies(55.4e9, 55.3e9, 50.1e9),
    calls=[],
    pinning=[],
    findings=[],
)
replace = msgspec.structs.replace


def bad(examination: Examination) -> list[Finding]:
    return [finding for finding in judge(examination) if finding.severity != "ok"]


def test_a_machine_without_a_flaw_has_only_good_findings() -> None:
    findings = judge(GOOD)
    assert findings
    assert {finding.severity for finding in findings} == {"ok"}


def test_a_link_below_its_generation_is_a_warning() -> None:
    card = replace(CARD, link=replace(LINK, generation=3))
    [finding, *_] = bad(replace(GOOD, card=card, copies=[]))
    assert finding.severity == "warning"
    assert "PCIe 3 x16 instead of PCIe 5 x16" in finding.what


def test_a_link_below_its_width_is_a_warning() -> None:
    card = replace(CARD, link=replace(LINK, width=8))
    [finding, *_] = bad(replace(GOOD, card=card, copies=[]))
    assert "PCIe 5 x8 instead of PCIe 5 x16" in finding.what


def test_an_unknown_link_is_a_note_and_no_copy_is_judged_by_it() -> None:
    link = Link(generation=None, width=None, max_generation=None, max_width=None, source="no NVML")
    [finding] = bad(replace(GOOD, card=replace(CARD, link=link)))
    assert finding.severity == "note"
    assert "no NVML" in finding.what


def test_copies_far_below_the_link_are_a_warning() -> None:
    [finding] = bad(replace(GOOD, copies=copies(30e9, 30e9, 30e9)))
    assert finding.severity == "warning"
    assert "30.0 GB/s, 48 %" in finding.what


def test_a_link_that_is_not_duplex_is_a_note() -> None:
    [finding] = bad(replace(GOOD, copies=copies(55e9, 55e9, 28e9)))
    assert finding.severity == "note"


def limits(**changes: object) -> Examination:
    return replace(GOOD, limits=replace(LIMITS, **changes))


@pytest.mark.parametrize(
    ("examination", "severity", "words"),
    [
        (limits(transparent_huge_pages="never"), "warning", "huge pages"),
        (limits(locked_memory=8 << 20), "note", "8 MiB (ulimit -l)"),
        (limits(address_space=GIB), "problem", "ulimit -v"),
        (limits(ram_total=64 * GIB), "warning", "64 GiB (all the RAM there is)"),
        (
            limits(memory_limit=32 * GIB, memory_limit_source="cgroup v2, /x/memory.max"),
            "warning",
            "32 GiB (by cgroup v2, /x/memory.max)",
        ),
        (limits(shared_memory_total=64 << 20), "note", "/dev/shm"),
        (limits(overcommit=2), "note", "overcommit_memory = 2"),
        (replace(GOOD, driver=replace(DRIVER, version=11040)), "warning", "CUDA 11.4"),
        (replace(GOOD, card=replace(CARD, memory_free=70 * GIB)), "note", "70 GiB of"),
    ],
)
def test_one_flaw_is_one_finding(examination: Examination, severity: str, words: str) -> None:
    [finding] = bad(examination)
    assert finding.severity == severity
    assert words in finding.what
    assert finding.why and finding.fix


def test_the_gravest_finding_comes_first() -> None:
    found = judge(limits(address_space=GIB, overcommit=2, transparent_huge_pages="never"))
    severities = [finding.severity for finding in found]
    assert severities[:3] == ["problem", "warning", "note"]


def test_memory_that_a_simulated_card_lacks_is_a_note() -> None:
    simulated = replace(CARD, memory_total=4 * GIB, memory_free=4 * GIB, profile_memory=140 * GIB)
    [finding] = bad(replace(GOOD, card=simulated))
    assert finding.severity == "note"
    assert "has 4 GiB of memory, the card of its profile 140 GiB" in finding.what
    assert "data=off" in finding.fix
    whole = replace(CARD, profile_memory=CARD.memory_total)
    assert bad(replace(GOOD, card=whole)) == []


def pinning(method: str, touch: bool, rate: float | None) -> Pinning:
    reading = Spread(1.0, 1.0, 1.0, 1)
    return Pinning(
        method=method,
        threads=16,
        nbytes=1,
        touch=reading if touch else None,
        pin=reading,
        rate=None if rate is None else Spread(rate, rate, rate, 1),
    )


def test_a_much_faster_way_to_pin_is_a_note() -> None:
    slow, fast = pinning("cuMemHostAlloc", False, 2e9), pinning("huge pages", True, 20e9)
    [finding] = bad(replace(GOOD, pinning=[slow, fast]))
    assert "huge pages with 16 threads pins 20.0 GB/s" in finding.what
    assert "10 times" in finding.why


def test_simulated_pinning_is_not_compared() -> None:
    slow, fast = pinning("cuMemHostAlloc", False, 2e9), pinning("huge pages", True, None)
    assert bad(replace(GOOD, pinning=[slow, fast])) == []


def test_a_container_without_its_driver_library_is_told_from_no_driver(tmp_path: Path) -> None:
    nothing = missing_driver("looked everywhere", tmp_path)
    assert "no kernel module" in nothing.what
    assert nothing.why == "looked everywhere"
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia0").touch()
    container = missing_driver("looked everywhere", tmp_path)
    assert "/dev has nvidia0" in container.what
    assert "--gpus all" in container.fix
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").touch()
    assert "the kernel module is loaded" in missing_driver("x", tmp_path).what


def test_a_known_refusal_of_the_driver_has_its_own_remedy() -> None:
    assert "different versions" in refusing_driver("cuInit failed", 803).fix
    assert "nvidia-smi" in refusing_driver("cuInit failed", 12345).fix
