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
    names = {mib: units.Unit(mib).resource for mib in (1, 256, 1024)}
    assert names == {
        1: "vramkit.dev/vram-mib",
        256: "vramkit.dev/vram-256mib",
        1024: "vramkit.dev/vram-gib",
    }
    for wrong in (0, 3, 2048):
        with pytest.raises(units.UnitError, match="a power of two"):
            units.Unit(wrong)


def test_ids_are_short_enough_and_fit_a_message() -> None:
    """A kubelet takes ids of 63 characters, and messages of 4 MiB."""
    large = [card(A, 140 * 1024, 16.0), card(B, 140 * 1024, 16.0)]
    with pytest.raises(units.UnitError, match="choose a larger unit"):
        units.Unit(1).must_fit_message([card(A, 140 * 1024)])
    chosen = units.Unit(units.DEFAULT_UNIT_MIB)
    chosen.must_fit_message(large)
    ids = [each for each_card in large for each in chosen.ids(each_card)]
    assert len(set(ids)) == len(ids) == 2 * 16 * 560
    assert max(map(len, ids)) <= 63
    device = api.MESSAGES["Device"]
    message = api.MESSAGES["ListAndWatchResponse"](
        devices=[device(ID=each, health="Unhealthy") for each in ids]
    )
    estimated = sum(len(each) + units.BYTES_AROUND_ID for each in ids)
    assert message.ByteSize() == estimated < 4 << 20


def test_units_of_one_container_are_on_the_fullest_card_that_has_them() -> None:
    unit = units.Unit(256)
    on_a, on_b = unit.ids(card(A, 1024)), unit.ids(card(B, 2048))
    assert units.prefer([*on_b, *on_a], [], 3) == on_a[:3]
    assert units.prefer([*on_a, *on_b], [], 5) == on_b[:5]
    assert units.prefer([*on_a, *on_b], [on_b[1]], 2) == [on_b[1], on_b[0]]
    # On no card alone: the kubelet must have as many as it asked for.
    assert len(units.prefer([*on_a, *on_b], [], 10)) == 10


@pytest.mark.parametrize("identity", ["", "x", f"{A}-", "a-b", f"{A}-1x"])
def test_foreign_id_is_refused(identity: str) -> None:
    with pytest.raises(units.UnitError, match="no id of a unit"):
        units.card_of(identity)
