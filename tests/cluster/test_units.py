"""Units of memory as the kubelet counts them, and the messages that tell it; no kubelet needed."""

from __future__ import annotations

from typing import Any

import pytest

from vramkit.cluster.cards import Card

from .nodes import MIB

pytest.importorskip("grpc", reason="grpcio is not installed: vramkit[kubernetes]")

from vramkit.integrations.kubernetes import api, units

A, B = (f"GPU-{letter * 8}-1111-2222-3333-444444444444" for letter in "ab")


def card(uuid: str, mib: int, factor: float = 1.0) -> Card:
    return Card(uuid, mib * MIB, mib * MIB, int(mib * MIB * factor))


# Messages


@pytest.mark.parametrize(
    ("message", "fields", "wire"),
    [
        ("DevicePluginOptions", {"get_preferred_allocation_available": True}, "1001"),
        (
            "RegisterRequest",
            {"version": "a", "endpoint": "b", "resource_name": "c", "options": {}},
            "0a01611201621a01632200",
        ),
        ("ListAndWatchResponse", {"devices": [{"ID": "a", "health": "b"}]}, "0a060a0161120162"),
        (
            "PreferredAllocationRequest",
            {
                "container_requests": [
                    {
                        "available_deviceIDs": ["a"],
                        "must_include_deviceIDs": ["b"],
                        "allocation_size": 5,
                    }
                ]
            },
            "0a080a01611201621805",
        ),
        (
            "PreferredAllocationResponse",
            {"container_responses": [{"deviceIDs": ["a"]}]},
            "0a030a0161",
        ),
        ("AllocateRequest", {"container_requests": [{"devices_ids": ["a"]}]}, "0a030a0161"),
        (
            "AllocateResponse",
            {"container_responses": [{"envs": {"a": "b"}, "cdi_devices": [{"name": "c"}]}]},
            "0a0d0a060a01611201622a030a0163",
        ),
        (
            "ListPodResourcesResponse",
            {
                "pod_resources": [
                    {
                        "name": "a",
                        "namespace": "b",
                        "containers": [
                            {"name": "c", "devices": [{"resource_name": "d", "device_ids": ["e"]}]}
                        ],
                    }
                ]
            },
            "0a130a01611201621a0b0a016312060a0164120165",
        ),
    ],
)
def test_messages_on_the_wire(message: str, fields: dict[str, Any], wire: str) -> None:
    """Written from the numbers of the published definitions."""
    made = api.MESSAGES[message](**fields)
    assert made.SerializeToString().hex() == wire
    assert api.MESSAGES[message].FromString(bytes.fromhex(wire)) == made


# Units


def test_resource_says_its_unit() -> None:
    assert units.Unit().resource == "vramkit.dev/vram-mib"
    assert units.Unit(256).resource == "vramkit.dev/vram-256mib"
    assert units.Unit(1024).resource == "vramkit.dev/vram-gib"
    for wrong in (0, 3, 2048):
        with pytest.raises(units.UnitError, match="a power of two"):
            units.Unit(wrong)


@pytest.mark.parametrize(
    ("unit", "cards"),
    [
        # One card with 141 GB, oversubscribed 1.3 times; two of 80 GiB; eight, twice.
        (1, [card(A, 140 * 1024, 1.3)]),
        (1, [card(A, 80 * 1024), card(B, 80 * 1024)]),
        (16, [card(f"GPU-{number}", 80 * 1024, 2.0) for number in range(8)]),
    ],
)
def test_usual_nodes_fit_one_message(unit: int, cards: list[Card]) -> None:
    """A kubelet takes messages of 4 MiB."""
    chosen = units.Unit(unit)
    chosen.must_be_listable(cards)
    ids = [each for each_card in cards for each in chosen.ids(each_card)]
    assert len(set(ids)) == len(ids) == sum(each.announced // (unit * MIB) for each in cards)
    device = api.MESSAGES["Device"]
    message = api.MESSAGES["ListAndWatchResponse"](
        devices=[device(ID=each, health="Unhealthy") for each in ids]
    )
    estimated = sum(len(each) + units.BYTES_AROUND_ID for each in ids)
    assert message.ByteSize() == estimated < 4 << 20


def test_node_that_does_not_fit_is_told_the_unit_that_does() -> None:
    cards = [card(f"GPU-{number}", 80 * 1024, 1.5) for number in range(8)]
    with pytest.raises(units.UnitError, match=r"--unit=8MiB or more, the same on all nodes"):
        units.Unit(1).must_be_listable(cards)
    units.Unit(8).must_be_listable(cards)
    with pytest.raises(units.UnitError, match="takes 4194304"):
        units.Unit(4).must_be_listable(cards)


def test_ids_are_of_their_card_and_stay_the_same() -> None:
    """The kubelet keeps them in a file, and asks with them after a restart."""
    unit = units.Unit(1)
    ids = unit.ids(card(A, 63))
    assert [ids[0], ids[61], ids[62]] == ["83jn0", "83jnZ", "83jn10"]
    assert {units.tag_of(each) for each in ids} == {units.card_tag(A)} != {units.card_tag(B)}
    assert unit.ids(card(A, 100))[:63] == ids


def test_cards_that_ids_could_not_tell_apart_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "card_tag", lambda uuid: "same")
    with pytest.raises(units.UnitError, match=f"{A}, {B} have the same 4 letters"):
        units.Unit().must_be_listable([card(A, 1), card(B, 1)])


def test_units_of_one_container_are_on_the_fullest_card_that_has_them() -> None:
    unit = units.Unit(256)
    on_a, on_b = unit.ids(card(A, 1024)), unit.ids(card(B, 2048))
    assert units.prefer([*on_b, *on_a], [], 3) == on_a[:3]
    assert units.prefer([*on_a, *on_b], [], 5) == on_b[:5]
    assert units.prefer([*on_a, *on_b], [on_b[1]], 2) == [on_b[1], on_b[0]]
    # On no card alone: the kubelet must have as many as it asked for.
    assert len(units.prefer([*on_a, *on_b], [], 10)) == 10


@pytest.mark.parametrize("identity", ["", "abcd", "ab-d1", f"{A}-1"])
def test_foreign_id_is_refused(identity: str) -> None:
    with pytest.raises(units.UnitError, match="no id of a unit"):
        units.tag_of(identity)


def test_units_of_a_card_that_is_not_here_are_refused() -> None:
    unit = units.Unit(256)
    with pytest.raises(units.UnitError, match="this node has no card whose units are"):
        units.amount(unit.ids(card(A, 1024))[:2], unit, [card(B, 1024)])
