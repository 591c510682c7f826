"""The subjects: each does what its contract says. Peers are stand-ins here (peers.py)."""

from __future__ import annotations

import os
import sys

import pytest

from lab import peers
from lab.support import MIB, handed_over, pairs
from vramkit.driver import Device, Driver, OutOfMemoryError
from vramkit.lab.player import play
from vramkit.lab.program import ProgramBuilder
from vramkit.lab.subjects import SUBJECTS, Room, missing
from vramkit.lab.subjects.sizes import size_of

OWN = ["pool", "direct", "async", "fixed_pool", "arena"]
PEERS = [name for name in SUBJECTS if name not in OWN]
ROOM = Room(peak_in_use=4 * MIB)


@pytest.fixture
def device(driver: Driver) -> Device:
    return driver.device()


@pytest.fixture
def card(device: Device, monkeypatch: pytest.MonkeyPatch) -> peers.Card:
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.setenv(name, "before")
    return peers.Card(device)


@pytest.fixture
def here(request: pytest.FixtureRequest, card: peers.Card, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a peer, whose library is put in place."""
    name = request.param
    library = name.partition("_")[0]
    if library == "torch":
        peers.torch(monkeypatch, card, expandable=name == "torch_expandable")
    else:
        getattr(peers, library)(monkeypatch, card)
    return name


each_peer = pytest.mark.parametrize("here", PEERS, indirect=True)


def test_the_pool_is_first_and_every_name_is_its_own() -> None:
    assert next(iter(SUBJECTS)) == "pool"
    assert [subject.name for subject in SUBJECTS.values()] == list(SUBJECTS)
    assert len({subject.title for subject in SUBJECTS.values()}) == len(SUBJECTS)
    assert [name for name, subject in SUBJECTS.items() if subject.ours] == OWN[:3]


@pytest.mark.sim_only
def test_peers_say_that_they_need_a_card_without_being_imported(driver: Driver) -> None:
    before = set(sys.modules)
    why = missing(driver)
    assert set(sys.modules) - before == set()
    assert {name for name, words in why.items() if not words} == set(OWN)
    assert why["torch"] == "PyTorch runs on NVIDIA's driver only, not on the simulated GPU"


def test_peers_that_are_not_there_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace
    from typing import Any

    from vramkit.lab.subjects import peer

    on_a_card: Any = SimpleNamespace(sim=None)
    monkeypatch.setattr(peer, "find_spec", lambda name: None)
    for name in ("rmm", "cupy", "torch"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert SUBJECTS["rmm_pool"].missing(on_a_card) == "RMM is not installed"
    monkeypatch.setattr(peer, "find_spec", lambda name: name)
    assert SUBJECTS["rmm_pool"].missing(on_a_card) == ""
    monkeypatch.setattr(peer, "version", lambda package: "2.13.0+cpu")
    assert SUBJECTS["torch"].missing(on_a_card) == "this PyTorch is built for CPUs only"


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("in_turns", [True, False])
def test_our_own_play_a_program(device: Device, name: str, in_turns: bool) -> None:
    with SUBJECTS[name].open(device, ROOM) as allocator:
        played = play(handed_over(20, in_turns=in_turns), allocator, device, measure="memory")
        assert played.peak_held == allocator.held() or name in ("direct", "async")
    assert played.peak_held is not None
    assert played.peak_held >= played.peak_in_use


@each_peer
@pytest.mark.sim_only
def test_peers_play_a_program(device: Device, here: str, card: peers.Card) -> None:
    with SUBJECTS[here].open(device, ROOM) as allocator:
        played = play(handed_over(20, in_turns=False), allocator, device, measure="memory")
    assert played.total.allocations == played.total.frees == 20
    assert played.peak_held is not None
    assert played.peak_held >= played.peak_in_use
    assert played.end_held == 0
    assert not played.native
    assert card.taken == 0


@each_peer
@pytest.mark.sim_only
def test_peers_get_the_stream_of_the_program(device: Device, here: str, card: peers.Card) -> None:
    with SUBJECTS[here].open(device, ROOM) as allocator, device.stream() as stream:
        allocator.free(allocator.allocate(MIB, stream), MIB, stream)
        calls = [note for note in card.notes if note[1:] == (MIB, stream.handle)]
        assert len(calls) == (2 if here.startswith("rmm") else 1)


@each_peer
@pytest.mark.sim_only
def test_a_block_freed_on_another_stream_is_ordered_there(device: Device, here: str) -> None:
    """The checker reports a free or a reuse that is not ordered behind the write."""
    with (
        SUBJECTS[here].open(device, ROOM) as allocator,
        device.stream() as own,
        device.stream() as other,
    ):
        block = allocator.allocate(MIB, own)
        other.wait(own)
        device.fill(allocator.address(block), 1, MIB, stream=other)
        allocator.free(block, MIB, other)
        if not here.startswith("rmm"):
            # The stream of the allocation now waits for the write, so that it may use it again.
            waits = device.driver.sim
            assert waits is not None
            assert waits.call_counts()["cuStreamWaitEvent"] == 2


@each_peer
@pytest.mark.sim_only
def test_the_errors_of_peers_become_ours(device: Device, here: str, card: peers.Card) -> None:
    with SUBJECTS[here].open(device, ROOM) as allocator, device.stream() as stream:
        card.most = MIB
        with pytest.raises(OutOfMemoryError, match="no more than that"):
            allocator.allocate(2 * MIB, stream)


@each_peer
@pytest.mark.sim_only
def test_peers_keep_to_the_limit(device: Device, here: str, card: peers.Card) -> None:
    subject = SUBJECTS[here]
    program = pairs(1, size=64 * MIB)
    with (
        device.alloc(512 * MIB),  # what others have is no part of it
        subject.open(device, Room(program.peak_in_use, limit=60 * MIB)) as allocator,
    ):
        if not subject.can_be_limited:
            play(program, allocator, device)
            return
        with pytest.raises(OutOfMemoryError, match="step 0 of 'pairs'"):
            play(program, allocator, device)


@pytest.mark.parametrize("name", ["pool", "fixed_pool", "arena"])
@pytest.mark.sim_only
def test_our_own_keep_to_the_limit(device: Device, name: str) -> None:
    program = pairs(1, size=64 * MIB)
    assert SUBJECTS[name].can_be_limited
    with (
        SUBJECTS[name].open(device, Room(program.peak_in_use, limit=32 * MIB)) as allocator,
        pytest.raises(OutOfMemoryError, match="step 0 of 'pairs'"),
    ):
        play(program, allocator, device)


@pytest.mark.parametrize("name", ["fixed_pool", "arena"])
@pytest.mark.sim_only
def test_sized_baselines_take_half_of_the_card_or_what_they_are_told(
    device: Device, name: str
) -> None:
    free = device.memory_info().free
    with SUBJECTS[name].open(device, ROOM) as allocator:
        assert allocator.held() == pytest.approx(free // 2, abs=4 * MIB)
    with SUBJECTS[name].open(device, Room(MIB, size=64 * MIB)) as allocator:
        assert allocator.held() == 64 * MIB


@pytest.mark.sim_only
def test_without_a_size_half_of_what_is_free_is_taken(device: Device) -> None:
    with device.alloc(512 * MIB):
        memory = device.memory_info()
        assert memory.total - memory.free >= 512 * MIB
        assert size_of(device, Room(1)) == memory.free // 2 // 256 * 256


@pytest.mark.sim_only
def test_sizes_are_whole_and_never_above_the_limit(device: Device) -> None:
    assert size_of(device, Room(1, size=1000)) == 768
    assert size_of(device, Room(1, size=10)) == 256
    assert size_of(device, Room(1, limit=512)) == 512
    assert size_of(device, Room(1, size=1 << 20, limit=1 << 19)) == 1 << 19


@pytest.mark.sim_only
def test_rmm_has_the_settings_of_its_own_benchmarks(
    device: Device, card: peers.Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    peers.rmm(monkeypatch, card)
    half = size_of(device, ROOM)
    with SUBJECTS["rmm_binning"].open(device, ROOM):
        pass
    assert card.notes == [
        ("StatisticsResourceAdaptor", {}),
        ("PoolMemoryResource", {"initial_pool_size": half, "maximum_pool_size": None}),
        ("BinningMemoryResource", 18, 22, {}),
    ]
    card.notes.clear()
    with SUBJECTS["rmm_arena"].open(device, Room(MIB, size=8 * MIB)):
        pass
    assert card.notes[-1] == ("ArenaMemoryResource", {"arena_size": 8 * MIB})


@pytest.mark.parametrize("name", ["torch", "torch_expandable"])
@pytest.mark.sim_only
def test_pytorch_with_the_wrong_segments_is_refused(
    device: Device, card: peers.Card, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    peers.torch(monkeypatch, card, expandable=name == "torch")
    subject = SUBJECTS[name].open(device, ROOM)
    with pytest.raises(RuntimeError, match=r"expandable_segments is (True|False) in this process"):
        subject.__enter__()
    expected = f"expandable_segments:{name == 'torch_expandable'}"
    assert os.environ["PYTORCH_CUDA_ALLOC_CONF"] == expected


@each_peer
@pytest.mark.sim_only
def test_peers_end_empty_after_a_failure(device: Device, here: str, card: peers.Card) -> None:
    builder = ProgramBuilder("short")
    for _ in range(4):
        builder.touch(builder.allocate(MIB))
    builder.free_all()
    with SUBJECTS[here].open(device, ROOM) as allocator:
        card.most = 3 * MIB
        with pytest.raises(OutOfMemoryError, match="step 6 of 'short'"):
            play(builder.build(), allocator, device)
        assert card.taken == 0
