"""Snapshots: sums, files and text; of memory made by hand and of a real pool."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy
import pytest

from vramkit import Pool
from vramkit.driver import Device
from vramkit.pool import Snapshot
from vramkit.pool.map import figures
from vramkit.pool.sums import by_class, by_stack, by_state, by_stream
from vramkit.report.blocks import Figure
from vramkit.resources import Tracking

from . import layouts
from .layouts import BASE, MIB

KIB8 = 8192


@pytest.fixture
def small() -> Snapshot:
    stacks = {
        BASE: ["a.py:1 in f", "b.py:2 in main"],
        BASE + KIB8: ["a.py:1 in f", "b.py:2 in main"],
    }
    return layouts.snapshot(layouts.small(), stacks)


def test_the_states_make_up_what_is_held(small: Snapshot) -> None:
    sums = by_state(small)
    assert (sums.live, sums.asked) == (4 * KIB8 + 6 * MIB, small.stats["current_usage"])
    assert (sums.cached, sums.waiting) == (2 * KIB8 + 2 * MIB, KIB8)
    assert (sums.idle, sums.rest) == (KIB8 + 4 * MIB, 2 * MIB - 8 * KIB8)
    assert sums.total == sum(extent.bytes for extent in small.extents) == 14 * MIB


def test_what_is_lost_to_fragmentation_is_what_the_statistics_say() -> None:
    taken = layouts.snapshot(layouts.small(), fragmented=3 * MIB)
    assert figures(taken).items[-1] == Figure("3 MiB", "lost to fragmentation", "note")


def test_sums_by_class_stream_and_stack(small: Snapshot) -> None:
    classes = by_class(small)
    assert [(name, sums.blocks) for name, sums in classes] == [
        ("8 KiB", 8),
        ("2 MiB", 1),
        ("6 MiB", 1),
    ]
    [(first, most), *others] = by_stream(small)
    assert (small.stream_name(first), most.live) == ("stream 9 (ended)", KIB8 + 6 * MIB)
    assert [small.stream_name(number) for number, _ in others] == ["capture 12", "stream 7"]
    without, given = by_stack(small)
    assert (without.frames, without.blocks) == ((), 3)
    assert (given.frames, given.live, given.asked) == (
        ("a.py:1 in f", "b.py:2 in main"),
        2 * KIB8,
        16_000,
    )


def test_many_classes_are_put_together_by_doublings() -> None:
    layout = layouts.small()
    layout["extents"] = [layouts.extent(BASE, [2 * MIB])]
    layout["slabs"] = []
    sizes = range(256, 256 * 31, 256)
    starts = [BASE + sum(sizes[:index]) for index in range(len(sizes))]
    layout["blocks"] = [
        layouts.block(start, size, "live", 0, size)
        for start, size in zip(starts, sizes, strict=True)
    ]
    taken = layouts.snapshot(layout)
    names = [name for name, _ in by_class(taken)]
    assert names[0] == "256 B to < 512 B" and names[-1] == "4 KiB to < 8 KiB"
    assert sum(sums.live for _, sums in by_class(taken)) == by_state(taken).live == sum(sizes)


def test_a_file_gives_the_same_snapshot_back(small: Snapshot, tmp_path: Path) -> None:
    small.save(tmp_path / "pool.json")
    assert Snapshot.read(tmp_path / "pool.json") == small
    document = json.loads((tmp_path / "pool.json").read_text())
    assert (document["format"], document["version"]) == ("vramkit.snapshot", 3)
    assert document["stacks"][str(BASE)] == ["a.py:1 in f", "b.py:2 in main"]


def test_the_suffix_chooses_the_form(small: Snapshot, tmp_path: Path) -> None:
    small.save(str(tmp_path / "pool.html"))
    assert (tmp_path / "pool.html").read_text(encoding="utf-8") == small.to_html()
    with pytest.raises(ValueError, match=r"pool\.txt: the name may end in \.json or \.html"):
        small.save(tmp_path / "pool.txt")


def changed(**fields: Any) -> str:
    return json.dumps(json.loads(layouts.snapshot(layouts.small()).to_json()) | fields)


def one_block(**fields: Any) -> str:
    found = layouts.block(BASE, KIB8, "live", 0, 8000) | fields
    return changed(blocks=[found])


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "truncated"),
        ("<html>", "malformed"),
        ("[1]", "Expected `object`"),
        ("{}", "its format is ''"),
        (changed(format="other"), "its format is 'other', not 'vramkit.snapshot'"),
        (changed(version=2), "it is of version 2, and this vramkit reads 3"),
        (changed(extents="none"), "Expected `array`"),
        (changed(stats={}), "its stats have no fragmentation_bytes"),
        (changed(streams=[]), "there are 0"),
        (one_block(stream=-2), "stream number -2"),
        (one_block(state="lost"), "Invalid enum value 'lost'"),
        (one_block(address=BASE - KIB8), "does not lie in an extent"),
        (one_block(address=BASE + 10 * MIB), "does not lie in an extent"),
        (one_block(bytes=4 * MIB), "does not lie in an extent"),
        (one_block(bytes=0), "blocks overlap, or are out of order"),
        (changed(blocks=[layouts.block(BASE, KIB8, "idle", -1)] * 2), "blocks overlap"),
        (changed(stacks={str(BASE + 1): ["f"]}), "which is of no live block"),
    ],
)
def test_a_bad_file_is_one_clear_error(content: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text(content)
    with pytest.raises(ValueError) as caught:
        Snapshot.read(path)
    text = str(caught.value)
    assert text.startswith(f"{path} is no snapshot: ") and reason in text
    assert text.endswith("Give a .json file that Snapshot.save() wrote")
    assert not isinstance(caught.value, msgspec.DecodeError)


def test_no_file_is_the_systems_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Snapshot.read(tmp_path / "nowhere.json")


def test_the_text_has_figures_map_and_sums_within_its_width(small: Snapshot) -> None:
    text = small.to_text(80)
    lines = [line.strip() for line in text.splitlines()]
    assert max(map(len, text.splitlines())) <= 80
    # Rows of 2 MiB: four blocks and half a cell's worth of free ones, then the end of the slab.
    assert f"{BASE:x}  █c" + "-" * 62 in lines
    assert f"{BASE + 64 * MIB:x}  " + "·" * 64 in lines
    assert lines[lines.index(f"{BASE + 64 * MIB:x}  " + "·" * 64) - 1] == ""  # a hole
    for word in ("lost to fragmentation", "stream 9 (ended)", "capture 12", "1: no stack given"):
        assert word in text


def test_a_width_in_which_nothing_can_be_read(small: Snapshot) -> None:
    assert "Memory by address" in small.to_text(40)
    for width in (39, 1, 0, -5):
        with pytest.raises(ValueError, match=f"width is {width}; it may be 40 columns or more"):
            small.to_text(width)
    with pytest.raises(TypeError, match="integer"):
        small.to_text("x")  # type: ignore[arg-type]


def test_an_empty_pool_has_a_snapshot_too() -> None:
    empty = layouts.snapshot({"extents": [], "slabs": [], "blocks": [], "streams": []})
    assert by_state(empty).total == empty.fragmentation_bytes == 0
    assert "0 B" in empty.to_text() and "0 B in 0 extents" in empty.to_html()


def test_a_real_pool_adds_up_to_its_statistics(pool: Pool, device: Device) -> None:
    with device.stream() as first, device.stream() as second:
        sizes = [300, 5000, 5000, 70_000, MIB, 3 * MIB, 20 * MIB]
        blocks = [
            pool.malloc(size, stream)
            for size in sizes
            for stream in (first, second)
            for _ in range(4)
        ]
        for address in blocks[::3]:
            pool.free(address)
        blocks.append(pool.malloc(36 * MIB, first))  # pieces move for it
        assert pool.stats().remapped_bytes > 0
        taken = pool.snapshot()
        sums, stats = by_state(taken), pool.stats()
        assert (sums.asked, sums.total) == (stats.current_usage, stats.reserved)
        assert (sums.cached, sums.waiting, sums.idle) == (stats.cached, stats.waiting, stats.idle)
        assert taken.stats == msgspec.to_builtins(stats)
        pieces = [extent.pieces for extent in taken.extents]
        assert sum(map(len, pieces)) == stats.pieces
        assert [extent.bytes for extent in taken.extents] == [sum(each) for each in pieces]
        for extent, following in pairwise(taken.extents):
            assert extent.address + extent.bytes < following.address  # else they were one
        live = {block.address for block in taken.blocks if block.state == "live"}
        assert live == set(blocks) - set(blocks[:-1:3])
        owners = {taken.streams[number].id for number, _ in by_stream(taken)}
        assert owners == {first.id, second.id}
        for address in live:
            pool.free(address)


def test_the_legacy_stream_has_a_name_and_no_id(pool: Pool) -> None:
    pool.free(pool.malloc(4096))
    (stream,) = pool.snapshot().streams
    assert (stream.kind, stream.id, stream.name) == ("legacy", 0, "legacy default stream")


def test_stacks_are_of_live_blocks(pool: Pool, device: Device) -> None:
    kept, freed = pool.malloc(5000), pool.malloc(5000)
    pool.free(freed)
    for address in (freed, 17):
        words = f"stacks has the address {address:#x}, which is of no live block"
        with pytest.raises(ValueError, match=words):
            pool.snapshot(stacks={kept: ("a.py:1 in f",), address: ("b.py:1 in g",)})
    taken = pool.snapshot(stacks={numpy.uint64(kept): ("a.py:1 in f",)})  # type: ignore[dict-item]
    assert taken.stacks == {kept: ["a.py:1 in f"]}
    assert taken.device == device.name and taken.driver == device.driver.description
    pool.free(kept)


def test_stacks_of_a_tracking_adaptor(pool: Pool) -> None:
    with Tracking(pool) as tracking:
        kept, other = tracking.malloc(5000), pool.malloc(5000)
        (block,) = tracking.outstanding()
        stacks = pool.snapshot(stacks=tracking).stacks
        assert stacks == {kept: [str(frame) for frame in block.stack]}
        assert stacks[kept][0].endswith(" in test_stacks_of_a_tracking_adaptor")
        tracking.free(kept)
        pool.free(other)


def test_what_is_no_stack_is_refused(pool: Pool) -> None:
    address = pool.malloc(5000)
    given: Any
    for given in ([(address, ["a"])], 5, "abc"):
        with pytest.raises(TypeError, match="it may be a Tracking adaptor, or a mapping from"):
            pool.snapshot(stacks=given)
    for given in ("abc", 5, [5], {"a"}):
        with pytest.raises(TypeError, match="; it may be a list of lines of text"):
            pool.snapshot(stacks={address: given})
    for given in ("a", 1.5, None):
        with pytest.raises(TypeError, match=r"stacks has the key .*; it may be an address"):
            pool.snapshot(stacks={given: ["b"]})
    pool.free(address)


@pytest.mark.sim_only
@pytest.mark.sim(profile="pcie4-24gb")
def test_a_simulated_card_is_named_as_such(pool: Pool) -> None:
    taken = pool.snapshot()
    assert taken.simulated == "pcie4-24gb"
    assert "simulated · pcie4-24gb" in taken.to_html()
