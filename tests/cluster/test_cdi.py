"""Our CDI files follow the published rules, and the check of that refuses files that do not."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from vramkit.integrations.kubernetes.cdi import Edits, Specs, device_name

from .cdi_schema import problems

pytestmark = pytest.mark.sim_only

EVERYTHING: dict[str, Any] = {
    "cdiVersion": "0.7.0",
    "kind": "vendor.example/class.of-1",
    "annotations": {"vendor.example/note": "of the file"},
    "containerEdits": {"env": ["FOR_ALL=1"], "additionalGids": [0, 44]},
    "devices": [
        {
            "name": "0:with_all.of-it",
            "annotations": {"note": ""},
            "containerEdits": {
                "env": ["EMPTY=", "TWO=a=b\nc"],
                "deviceNodes": [
                    {
                        "path": "/dev/card0",
                        "hostPath": "/dev/host/card0",
                        "type": "c",
                        "major": 195,
                        "minor": -1,
                        "fileMode": 0o660,
                        "permissions": "rw",
                        "uid": 0,
                        "gid": 2**32 - 1,
                    }
                ],
                "mounts": [
                    {
                        "hostPath": "/lib",
                        "containerPath": "/inside",
                        "type": "none",
                        "options": ["ro", "rbind"],
                    }
                ],
                "hooks": [
                    {
                        "hookName": "createContainer",
                        "path": "/bin/hook",
                        "args": ["hook", "now"],
                        "env": ["A=1"],
                        "timeout": 3,
                    }
                ],
                "intelRdt": {
                    "closID": "class",
                    "l3CacheSchema": "L3:0=f",
                    "memBwSchema": "MB:0=70",
                    "enableCMT": True,
                    "enableMBM": False,
                },
            },
        },
        {"name": "A", "containerEdits": {"env": ["A=1"]}},
    ],
}
EDITS = "devices.0.containerEdits"
NODE, MOUNT, HOOK = (f"{EDITS}.{name}.0" for name in ("deviceNodes", "mounts", "hooks"))
GONE = object()


def changed(place: str, value: Any) -> dict[str, Any]:
    """EVERYTHING with another value at one place, or without it."""
    made = copy.deepcopy(EVERYTHING)
    *way, last = [int(each) if each.isdigit() else each for each in place.split(".")]
    inner: Any = made
    for each in way:
        inner = inner[each]
    if value is GONE:
        del inner[last]
    else:
        inner[last] = value
    return made


def test_file_with_all_that_there_is_follows_the_rules() -> None:
    assert problems(EVERYTHING) == []


def test_file_that_the_plugin_writes_follows_the_rules(tmp_path: Path) -> None:
    edits = Edits({"LD_PRELOAD": "/g/libgate.so"}, {Path("/g"): tmp_path})
    path = Specs(tmp_path).write(device_name("GPU-aaaaaaaa-1111", 256 << 20), edits)
    written = json.loads(path.read_text())
    assert problems(written) == []
    written["devices"][0]["containerEdits"] = {"env": [], "mounts": []}
    assert problems(written) == ["file.devices[0].containerEdits: empty"]


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("cdiVersion", GONE),
        ("cdiVersion", "v0.7.0"),
        ("cdiVersion", "0.7"),
        ("cdiVersion", 0.7),
        ("kind", GONE),
        ("kind", "class"),
        ("kind", "vendor.example/"),
        ("kind", "vendor.example/class/more"),
        ("kind", "1vendor.example/class"),
        ("kind", "-vendor.example/class"),
        ("kind", "vendor_example/class"),
        ("kind", "vendor..example/class"),
        ("kind", f"vendor.example/{'c' * 64}"),
        ("kind", f"{'v' * 254}/class"),
        ("annotations.number", 1),
        ("annotations", ["note"]),
        ("containerEdits", [EVERYTHING["containerEdits"]]),
        ("unknown", 1),
        ("devices", GONE),
        ("devices", []),
        ("devices", {"name": "A"}),
        ("devices.1", "A"),
        ("devices.1.name", GONE),
        ("devices.1.name", ""),
        ("devices.1.name", "-A"),
        ("devices.1.name", "A/B"),
        ("devices.1.name", "A\n"),
        ("devices.1.containerEdits", GONE),
        ("devices.1.containerEdits", {}),
        ("devices.1.unknown", 1),
        (f"{EDITS}.devices", []),
        (f"{EDITS}.env", "A=1"),
        (f"{EDITS}.env.0", "=1"),
        (f"{EDITS}.env.0", "A"),
        (f"{EDITS}.deviceNodes", {}),
        (NODE, "/dev/card0"),
        (f"{NODE}.path", GONE),
        (f"{NODE}.path", ""),
        (f"{NODE}.hostPath", "card0"),
        (f"{NODE}.containerPath", "/dev/card0"),
        (f"{NODE}.type", "char"),
        (f"{NODE}.major", "195"),
        (f"{NODE}.minor", 2**63),
        (f"{NODE}.fileMode", "0660"),
        (f"{NODE}.permissions", "rwx"),
        (f"{NODE}.uid", -1),
        (f"{NODE}.gid", 2**32),
        (f"{NODE}.gid", True),
        (f"{MOUNT}.hostPath", GONE),
        (f"{MOUNT}.hostPath", ""),
        (f"{MOUNT}.containerPath", GONE),
        (f"{MOUNT}.containerPath", "inside"),
        (f"{MOUNT}.options", "ro,rbind"),
        (f"{MOUNT}.options.0", None),
        (f"{MOUNT}.type", 1),
        (f"{MOUNT}.readonly", True),
        (f"{HOOK}.hookName", GONE),
        (f"{HOOK}.hookName", "beforeAll"),
        (f"{HOOK}.path", GONE),
        (f"{HOOK}.path", "hook"),
        (f"{HOOK}.args", "now"),
        (f"{HOOK}.env.0", "A"),
        (f"{HOOK}.timeout", 0),
        (f"{HOOK}.timeout", 1.5),
        (f"{HOOK}.dir", "/"),
        ("containerEdits.additionalGids.0", -1),
        ("containerEdits.additionalGids", 44),
        (f"{EDITS}.intelRdt", "class"),
        (f"{EDITS}.intelRdt.closID", ".."),
        (f"{EDITS}.intelRdt.closID", "a/b"),
        (f"{EDITS}.intelRdt.enableCMT", "true"),
        (f"{EDITS}.intelRdt.unknown", "1"),
    ],
)
def test_broken_file_is_refused_at_its_place(place: str, value: Any) -> None:
    found = [said.partition(":")[0] for said in problems(changed(place, value))]
    assert [each.replace("[", ".").replace("]", "") for each in found] == [f"file.{place}"]


@pytest.mark.parametrize(
    ("version", "refused"),
    [
        ("0.7.0", set()),
        ("0.6.0", {"additionalGids", "intelRdt"}),
        ("0.5.0", {"additionalGids", "intelRdt", "annotations", "kind"}),
        ("0.4.0", {"additionalGids", "intelRdt", "annotations", "kind", "hostPath", "name"}),
        (
            "0.3.0",
            {"additionalGids", "intelRdt", "annotations", "kind", "hostPath", "name", "type"},
        ),
    ],
)
def test_file_of_an_older_version_has_nothing_newer(version: str, refused: set[str]) -> None:
    found = problems({**EVERYTHING, "cdiVersion": version})
    assert {said.partition(":")[0].rpartition(".")[2] for said in found} == refused


def test_device_that_is_there_twice_is_refused() -> None:
    name = EVERYTHING["devices"][0]["name"]
    assert f"{name} is there twice" in problems(changed("devices.1.name", name))[0]


@pytest.mark.parametrize("file", [None, [], "{}", [EVERYTHING]])
def test_what_is_no_object_is_refused(file: Any) -> None:
    assert problems(file) == [f"file: {file!r} is not an object"]
