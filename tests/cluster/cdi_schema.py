"""The rules of the Container Device Interface, versions 0.3.0 to 1.0.0, and a check against them.

Written from the published specification: its text, its schema and its validator. Where they differ
a file must please the strictest, and a key that none of them names is refused: a runtime would
ignore it, so that a misspelt one is lost without a word.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

Rule = Mapping[str, Any]
"""`type` and, by type: `pattern` or `enum` of a text (`before`: what older versions ask for),
`least` and `most` of a number, `items` and `some` (not empty) of a list, and of an object
`properties`, `required`, `some`, or `values` where its keys are free. `since`: the version that
brought a property."""

VERSIONS = "0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0"
WORDS = {
    str: "a text",
    int: "a whole number",
    bool: "true or false",
    list: "a list",
    dict: "an object",
}

# A subdomain, of which the validator asks that a letter comes first; then a name of 63 characters.
LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?"
VENDOR = rf"(?=[A-Za-z][^/]{{0,252}}/){LABEL}(\.{LABEL})*/(?=.{{1,63}}$)"
KIND = VENDOR + r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?"
KIND_WITHOUT_DOTS = VENDOR + r"[A-Za-z]([A-Za-z0-9_-]*[A-Za-z0-9])?"
DEVICE = r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?"
DEVICE_WITH_LETTER = r"[A-Za-z]([A-Za-z0-9_.:-]*[A-Za-z0-9])?"

TEXT: Rule = {"type": str}
FLAG: Rule = {"type": bool}
UINT32: Rule = {"type": int, "least": 0, "most": 2**32 - 1}
INT64: Rule = {"type": int, "least": -(2**63), "most": 2**63 - 1}
PATH: Rule = {"type": str, "pattern": r"/.*"}
TEXTS: Rule = {"type": list, "items": TEXT}
VARIABLES: Rule = {"type": list, "items": {"type": str, "pattern": r"[^=]+=.*"}}
ANNOTATIONS: Rule = {"type": dict, "values": TEXT, "since": "0.6.0"}

DEVICE_NODE: Rule = {
    "type": dict,
    "required": {"path"},
    "properties": {
        "path": PATH,
        "hostPath": {**PATH, "since": "0.5.0"},
        "type": {"type": str, "enum": ("b", "c", "u", "p")},
        "major": INT64,
        "minor": INT64,
        "fileMode": UINT32,
        "permissions": {"type": str, "pattern": r"[rwm]+"},
        "uid": UINT32,
        "gid": UINT32,
    },
}
MOUNT: Rule = {
    "type": dict,
    "required": {"hostPath", "containerPath"},
    "properties": {
        "hostPath": PATH,
        "containerPath": PATH,
        "options": TEXTS,
        "type": {**TEXT, "since": "0.4.0"},
    },
}
HOOK: Rule = {
    "type": dict,
    "required": {"hookName", "path"},
    "properties": {
        "hookName": {
            "type": str,
            "enum": ("createRuntime", "createContainer", "startContainer", "poststart", "poststop"),
        },
        "path": PATH,
        "args": TEXTS,
        "env": VARIABLES,
        "timeout": {**UINT32, "least": 1},
    },
}
INTEL_RDT: Rule = {
    "type": dict,
    "since": "0.7.0",
    "properties": {
        "closID": {"type": str, "pattern": r"(?!\.{1,2}$)[^/\n]{1,4095}"},
        "l3CacheSchema": TEXT,
        "memBwSchema": TEXT,
        "enableCMT": FLAG,
        "enableMBM": FLAG,
    },
}
EDITS: Rule = {
    "type": dict,
    "properties": {
        "env": VARIABLES,
        "deviceNodes": {"type": list, "items": DEVICE_NODE},
        "mounts": {"type": list, "items": MOUNT},
        "hooks": {"type": list, "items": HOOK},
        "additionalGids": {"type": list, "items": UINT32, "since": "0.7.0"},
        "intelRdt": INTEL_RDT,
    },
}
SPEC: Rule = {
    "type": dict,
    "required": {"cdiVersion", "kind", "devices"},
    "properties": {
        "cdiVersion": {"type": str, "enum": VERSIONS},
        "kind": {"type": str, "pattern": KIND, "before": {"0.6.0": KIND_WITHOUT_DOTS}},
        "annotations": ANNOTATIONS,
        "containerEdits": EDITS,
        "devices": {
            "type": list,
            "some": True,
            "items": {
                "type": dict,
                "required": {"name", "containerEdits"},
                "properties": {
                    "name": {
                        "type": str,
                        "pattern": DEVICE,
                        "before": {"0.5.0": DEVICE_WITH_LETTER},
                    },
                    "annotations": ANNOTATIONS,
                    "containerEdits": {**EDITS, "some": True},
                },
            },
        },
    },
}


def problems(spec: Any) -> list[str]:
    """What a file that was read breaks, each with its place; none: it follows the rules."""
    version = spec.get("cdiVersion") if isinstance(spec, dict) else None
    found = list(_broken(spec, SPEC, version if version in VERSIONS else VERSIONS[-1], "file"))
    if not found:
        names = [each["name"] for each in spec["devices"]]
        found = [f"file.devices: {each} is there twice" for each in names if names.count(each) > 1]
    return found


def _broken(value: Any, rule: Rule, version: str, where: str) -> Iterator[str]:
    # Not isinstance: for Python true is a number.
    if type(value) is not rule["type"]:
        yield f"{where}: {value!r} is not {WORDS[rule['type']]}"
        return
    if rule.get("some") and not (any(value.values()) if isinstance(value, dict) else value):
        yield f"{where}: empty"
    if isinstance(value, str):
        yield from _broken_text(value, rule, version, where)
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from _broken(each, rule["items"], version, f"{where}[{number}]")
    elif isinstance(value, dict):
        yield from _broken_object(value, rule, version, where)
    elif "least" in rule and not rule["least"] <= value <= rule["most"]:
        yield f"{where}: {value} is out of range"


def _broken_text(value: str, rule: Rule, version: str, where: str) -> Iterator[str]:
    pattern = rule.get("pattern", ".*")
    for end, older in rule.get("before", {}).items():
        if VERSIONS.index(version) < VERSIONS.index(end):
            pattern = older
    if not re.fullmatch(pattern, value, re.DOTALL) or value not in rule.get("enum", (value,)):
        yield f"{where}: {value!r} has the wrong form"


def _broken_object(value: Any, rule: Rule, version: str, where: str) -> Iterator[str]:
    for name in rule.get("required", set()) - set(value):
        yield f"{where}.{name}: missing"
    for name, each in value.items():
        known = rule["values"] if "values" in rule else rule["properties"].get(name)
        if known is None:
            yield f"{where}.{name}: unknown"
        elif VERSIONS.index(version) < VERSIONS.index(known.get("since", VERSIONS[0])):
            yield f"{where}.{name}: only since version {known['since']}"
        else:
            yield from _broken(each, known, version, f"{where}.{name}")
