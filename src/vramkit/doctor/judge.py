"""Verdicts: pure functions from facts to findings, one for each question."""

from __future__ import annotations

from collections.abc import Iterator

from vramkit.doctor.facts import Card, CopyRate, DriverFacts, Examination, Finding, Limits, Pinning
from vramkit.report.units import bytes_text, count_text, percent_text, rate_text, version_text

OLDEST_TESTED_DRIVER = 12000
# Bytes a second and lane after the encoding of the line, by PCIe generation.
LANE_RATES = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
LOW_LOCKED_MEMORY = 64 << 20
LOW_SHARED_MEMORY = 1 << 30
ORDER = ("problem", "warning", "note", "ok")


def judge(examination: Examination) -> list[Finding]:
    """All findings, the most severe first."""
    findings = list(_limits(examination.limits, examination.card))
    if examination.driver is not None:
        findings += _driver(examination.driver)
    if examination.card is not None:
        findings += _card(examination.card)
        findings += _copies(examination.copies, examination.card)
    findings += _pinning(examination.pinning, examination.limits)
    return in_order(findings)


def in_order(findings: list[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda finding: ORDER.index(finding.severity))


def _driver(driver: DriverFacts) -> Iterator[Finding]:
    version = version_text(driver.version)
    if driver.simulated:
        yield Finding(
            severity="note",
            what=f"The card is a simulated one, profile {driver.profile}.",
            why="Its times come from the profile, not from this machine; the host's limits are "
            "this machine's.",
            fix="To examine an NVIDIA card, leave out VRAMKIT_DRIVER and --driver.",
        )
    elif driver.version < OLDEST_TESTED_DRIVER:
        yield Finding(
            severity="warning",
            what=f"The driver is old: it supports CUDA {version}.",
            why=f"vramkit is tested with CUDA {version_text(OLDEST_TESTED_DRIVER)} and later.",
            fix="Install a newer NVIDIA driver.",
        )
    else:
        yield Finding(severity="ok", what=f"The driver supports CUDA {version}.")


def _card(card: Card) -> Iterator[Finding]:
    link = card.link
    if link.generation is None or link.width is None:
        yield Finding(
            severity="note",
            what=f"The link's generation and width are unknown: {link.source}.",
            why="Only the measured copy rates say how good the link is.",
        )
    elif (link.max_generation or 0) > link.generation or (link.max_width or 0) > link.width:
        yield Finding(
            severity="warning",
            what=f"The link runs below its full rate: {link_text(link.generation, link.width)} "
            f"instead of {link_text(link.max_generation, link.max_width)}.",
            why="Every byte that is streamed or swapped crosses this link.",
            fix="Look for a shared or narrow slot, a riser cable, or a power setting in the "
            "firmware; the generation was read while copies ran.",
        )
    else:
        yield Finding(
            severity="ok",
            what=f"The link runs at its full rate: {link_text(link.generation, link.width)}.",
        )
    if card.profile_memory is not None and card.profile_memory > card.memory_total:
        all_of_it = bytes_text(card.profile_memory)
        yield Finding(
            severity="note",
            what=f"The simulated card has {bytes_text(card.memory_total)} of memory, the card of "
            f"its profile {all_of_it}.",
            why="Simulated memory that holds data is host memory: 4 GiB at most, or less by "
            "`capacity` in VRAMKIT_SIM.",
            fix=f"VRAMKIT_SIM=data=off simulates {all_of_it}, with sizes and times but without "
            "data.",
        )
    held = card.memory_total - card.memory_free
    if held > card.memory_total // 10:
        yield Finding(
            severity="note",
            what=f"{bytes_text(held)} of the card's {bytes_text(card.memory_total)} are in use.",
            why="Other programs hold them, and their work may slow the measurements down.",
            fix="`nvidia-smi` shows who holds memory.",
        )


def _copies(copies: list[CopyRate], card: Card) -> Iterator[Finding]:
    rates = {copy.what: copy.rate.median for copy in copies}
    inward = rates.get("pinned, host to device")
    outward = rates.get("pinned, device to host")
    both = rates.get("pinned, both ways at once")
    if inward is None or outward is None or both is None:
        return
    slow = min(inward, outward)
    link = card.link
    lane = LANE_RATES.get(link.generation or 0)
    if lane is not None and link.width is not None:
        best = lane * link.width
        reached = (
            f"Pinned copies reach {rate_text(slow)}, {percent_text(slow / best)} of the link's "
            f"{rate_text(best)}."
        )
        if slow < 0.7 * best:
            yield Finding(
                severity="warning",
                what=reached,
                why="85 to 90 % are usual.",
                fix="Bind the program to the CPU cores next to the card (`nvidia-smi topo -m`, "
                "`numactl`); look for other traffic on the same switch.",
            )
        else:
            yield Finding(severity="ok", what=reached)
    if both < 0.7 * slow:
        yield Finding(
            severity="note",
            what=f"Both ways at once, each way falls to {rate_text(both)} from {rate_text(slow)}.",
            why="A swap that overlaps both directions gains less here than it could.",
        )


def _limits(limits: Limits, card: Card | None) -> Iterator[Finding]:
    if limits.address_space is not None:
        yield Finding(
            severity="problem",
            what=f"The address space is limited to {bytes_text(limits.address_space)} (ulimit -v).",
            why="The driver reserves far more address space than the card has memory.",
            fix="`ulimit -v unlimited`.",
        )
    if limits.locked_memory is not None and limits.locked_memory < LOW_LOCKED_MEMORY:
        yield Finding(
            severity="note",
            what=f"Locked memory is limited to {bytes_text(limits.locked_memory)} (ulimit -l).",
            why="The CUDA driver pins memory outside this limit, but mlock, RDMA and io_uring "
            "are bound by it.",
            fix="`ulimit -l unlimited`; in a container --ulimit memlock=-1; in a systemd unit "
            "LimitMEMLOCK=infinity.",
        )
    if limits.transparent_huge_pages == "never":
        yield Finding(
            severity="warning",
            what="Transparent huge pages are switched off (never).",
            why="Host memory is then touched and pinned in 4 KiB pages, two to three times slower.",
            fix="As root: `echo madvise > /sys/kernel/mm/transparent_hugepage/enabled`.",
        )
    elif limits.transparent_huge_pages is not None:
        setting = limits.transparent_huge_pages
        yield Finding(severity="ok", what=f"Transparent huge pages are available ({setting}).")
    if card is not None:
        yield from _host_memory(limits, card)
    shared = limits.shared_memory_total
    if shared is not None and shared < LOW_SHARED_MEMORY:
        yield Finding(
            severity="note",
            what=f"/dev/shm holds only {bytes_text(shared)}.",
            why="Programs that pass tensors between processes put them there.",
            fix="In a container: --shm-size=8g, or --ipc=host.",
        )
    if limits.overcommit == 2:
        yield Finding(
            severity="note",
            what="The kernel does not overcommit memory (vm.overcommit_memory = 2).",
            why="Large host buffers can be refused while memory is still free.",
            fix="As root: `sysctl vm.overcommit_memory=0`.",
        )


def _host_memory(limits: Limits, card: Card) -> Iterator[Finding]:
    host = limits.host_memory()
    if host >= card.memory_total:
        yield Finding(
            severity="ok",
            what=f"The host's {bytes_text(host)} can hold all of the card's memory.",
        )
        return
    limited = limits.memory_limit is not None and limits.memory_limit < limits.ram_total
    reason = f"by {limits.memory_limit_source}" if limited else "all the RAM there is"
    yield Finding(
        severity="warning",
        what=f"The host may use {bytes_text(host)} ({reason}), "
        f"less than the card's {bytes_text(card.memory_total)}.",
        why="Memory that is swapped out goes to the host: a full card cannot be swapped out, and a "
        "model larger than host memory cannot be streamed.",
        fix="Raise the container's memory limit (--memory)."
        if limited
        else "Add RAM, or use less of the card (limit=, budget=).",
    )


def _pinning(pinning: list[Pinning], limits: Limits) -> Iterator[Finding]:
    """Only real figures are compared: a simulated sum has no rate."""
    known = [(entry.rate.median, entry) for entry in pinning if entry.rate is not None]
    plain = next((rate for rate, entry in known if entry.touch is None), None)
    best = max(known, key=lambda item: item[0], default=None)
    if plain is None or best is None or best[0] < 1.5 * plain:
        return
    rate, entry = best
    yield Finding(
        severity="note",
        what=f"cuMemHostAlloc pins {rate_text(plain)}; {entry.method} with "
        f"{count_text(entry.threads, 'thread')} pins {rate_text(rate)}.",
        why=f"{rate / plain:.0f} times faster at the start of a program and before a first swap.",
        fix="Pin large buffers this way.",
    )


def link_text(generation: int | None, width: int | None) -> str:
    return f"PCIe {generation or '?'} x{width or '?'}"
