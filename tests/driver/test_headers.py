"""Our declarations of the driver ABI against cuda.h of CUDA 12.9 and 13: calls, constants, layouts.

The lists of what to compare are read out of our own headers, so that nothing can be forgotten.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from vramkit import _core

NATIVE = Path(__file__).parents[2] / "native"
CHECKER = Path(__file__).with_name("header_check.cpp")

HEADERS = {
    "12.9": ("nvidia/cuda_runtime/include", "nvidia-cuda-runtime-cu12==12.9.*"),
    "13": ("nvidia/cu13/include", "nvidia-cuda-runtime==13.*"),
}

# Calls of the manifest that one of the two headers does not declare, and why that is right.
NOT_DECLARED: dict[str, dict[str, str]] = {
    "12.9": {
        "cuCtxSynchronize_v2": "new in 13.0",
        "cuMemcpyBatchAsync_v2": "new in 13.0",
        "cuMemcpy3DBatchAsync_v2": "new in 13.0",
        "cuMemPrefetchBatchAsync": "new in 13.0",
        "cuMemDiscardBatchAsync": "new in 13.0",
        "cuMemDiscardAndPrefetchBatchAsync": "new in 13.0",
        "cuMemSetMemPool": "new in 13.0",
    },
    "13": {},
}

# Members that the two headers lay out differently, and why that does no harm.
NOT_COMPARED = {
    ("CUmemPoolProps", "reserved"): "13 took its first byte for a member; zero in both",
}


class Call(NamedTuple):
    """A row of manifest.def."""

    base: str
    symbol: str
    since: int
    need: str
    suffix: str
    parameters: str


def text_of(name: str) -> str:
    """One of our headers, without its comments."""
    text = (NATIVE / "driver" / name).read_text(encoding="utf-8")
    return re.sub(r"//[^\n]*", "", text)


def manifest() -> list[Call]:
    text = text_of("manifest.def")
    rows = re.findall(
        r"VRAMKIT_CALL\((\w+), (\w+), (\d+), (required|optional|answered), (none|ptsz|ptds), "
        r"(\(.*\))\)\n",
        text,
    )
    assert len(rows) == text.count("VRAMKIT_CALL("), "a row of manifest.def cannot be read"
    return [Call(row[0], row[1], int(row[2]), *row[3:]) for row in rows]


def hooks(path: str, kinds: str) -> list[Call]:
    """The calls that the gate, or the library that keeps a program's memory, takes part in."""
    text = text_of(path)
    rows = re.findall(
        rf"VRAMKIT_HOOK\((\w+), (\w+), (\d+), (none|ptsz|ptds), ({kinds}), \w+, (\(.*\))\)\n", text
    )
    assert len(rows) == text.count("VRAMKIT_HOOK("), f"a row of {path} cannot be read"
    return [
        Call(base, symbol, int(since), when, suffix, parameters)
        for base, symbol, since, suffix, when, parameters in rows
    ]


def all_hooks() -> list[Call]:
    return hooks("../gate/hooks.def", "always|recording") + hooks(
        "../share/hooks.def", "launch|passes|hooked"
    )


def calls() -> list[Call]:
    return manifest() + all_hooks()


def result_codes() -> list[tuple[str, int]]:
    text = text_of("errors.def")
    rows = re.findall(r"VRAMKIT_RESULT\((\w+), (\d+), ", text)
    assert len(rows) == text.count("VRAMKIT_RESULT(")
    return [(name, int(code)) for name, code in rows]


def constants() -> list[tuple[str, str]]:
    """(ours as an expression, cuda.h's name) of every enumerator and constant of cuda_abi.h."""
    text = text_of("cuda_abi.h")
    macros = re.findall(r"#define (VRAMKIT_STREAM_\w+)", text)
    enumerators = [
        name
        for body in re.findall(r"\benum\b[^{;]*\{([^}]*)\}", text)
        for name in re.findall(r"\b(\w+)\s*=", body)
        if name != "name"  # of the macro that makes CUresult, compared by result_codes()
    ]
    named = [(f"ours::{name}", re.sub("^VRAMKIT_", "CU_", name)) for name in enumerators]
    return named + [(name, re.sub("^VRAMKIT_", "CU_", name)) for name in macros]


def structures() -> dict[str, list[str]]:
    """The members, those of nested structures with dots, of every structure in cuda_abi.h."""
    found = {}
    text = text_of("cuda_abi.h")
    for match in re.finditer(r"typedef struct \w+ \{(.*?)\n\} (\w+);", text, re.DOTALL):
        body, name = match.groups()
        found[name] = members(body)
    return found


def members(body: str) -> list[str]:
    """The members of a structure; what nests in it comes after the rest."""
    nested: list[str] = []
    inside = re.compile(r"(?:struct|union) \{((?:[^{}]|\{[^{}]*\})*)\} (\w+);")
    for inner, outer in inside.findall(body):
        nested += [f"{outer}.{member}" for member in members(inner)]
    return re.findall(r"(\w+)(?:\[\d+\])?;", inside.sub(r"of \2;", body)) + nested


def types() -> list[str]:
    """Every type that cuda_abi.h names and defines; structures are compared by their layout."""
    text = text_of("cuda_abi.h")
    scalars = re.findall(r"typedef [\w ]+? (\w+);", text)
    handles = re.findall(r"typedef struct \w+\* (\w+);", text)
    functions = re.findall(r"typedef void \(\*(\w+)\)", text)
    enums = re.findall(
        r"\} (\w+);", re.sub(r"typedef struct \w+ \{.*?\n\} \w+;", "", text, flags=re.S)
    )
    opaque = set(re.findall(r"typedef (?:struct|union) \w+ (\w+);", text))
    return [name for name in (*scalars, *handles, *functions, *enums) if name not in opaque]


# Finding and compiling


def include_folder(version: str) -> Path:
    folder, package = HEADERS[version]
    for entry in map(Path, sys.path):
        if (entry / folder / "cuda.h").is_file():
            return entry / folder
    pytest.fail(
        f"cuda.h of CUDA {version} is not installed: pip install '{package}'", pytrace=False
    )


def compiler() -> str:
    for name in (os.environ.get("CXX", ""), "c++", "g++", "clang++"):
        if name and (found := shutil.which(name)):
            return found
    pytest.skip("no C++ compiler: set CXX, or install g++ or clang++")


@cache
def declared(version: str) -> set[str]:
    """Functions that a header declares, by the names of their symbols."""
    command = [compiler(), "-E", "-P", "-x", "c++", "-D__CUDA_API_VERSION_INTERNAL"]
    header = include_folder(version) / "cuda.h"
    text = subprocess.run([*command, header], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"\bCUresult\s+(\w+)\s*\(", text))


def checks(version: str, calls: list[Call]) -> list[str]:
    names = declared(version)
    lines = [f"CHECK_CALL({c.symbol}, {c.parameters})" for c in calls if c.symbol in names]
    lines += [f"CHECK_RESULT({name}, {code})" for name, code in result_codes()]
    lines += [f"CHECK_VALUE({ours}, {theirs})" for ours, theirs in constants()]
    lines += [f"CHECK_TYPE({name})" for name in types()]
    for name, members in structures().items():
        lines.append(f"CHECK_SIZE({name})")
        compared = [member for member in members if (name, member) not in NOT_COMPARED]
        lines += [f"CHECK_MEMBER({name}, {member})" for member in compared]
    return lines


def run_checks(version: str, lines: list[str], folder: Path) -> list[str]:
    """The differences; every line must have been compared."""
    (folder / "checks.inc").write_text("\n".join(lines) + "\n", encoding="utf-8")
    program = folder / "header_check"
    includes = [f"-I{include_folder(version)}", f"-I{NATIVE}", f"-I{folder}"]
    command = [compiler(), "-std=c++20", "-w", *includes, str(CHECKER), "-o", str(program)]
    compiled = subprocess.run(command, capture_output=True, text=True, check=False)
    assert compiled.returncode == 0, compiled.stderr
    output = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    assert f"compared {len(lines)}\n" in output
    assert re.search(rf"CUDA_VERSION {version.partition('.')[0]}\d\d\d\n", output)
    return [line for line in output.splitlines() if line.startswith("differs: ")]


# The tests


@pytest.mark.parametrize("version", HEADERS)
def test_declarations_agree_with_cuda_h(version: str, tmp_path: Path) -> None:
    assert run_checks(version, checks(version, calls()), tmp_path) == []


@pytest.mark.parametrize("version", HEADERS)
def test_every_call_is_declared_but_for_known_ones(version: str) -> None:
    missing = {call.symbol for call in calls()} - declared(version)
    assert missing == set(NOT_DECLARED[version])


def test_every_call_is_compared_with_one_header_at_least() -> None:
    everywhere = set.union(*(declared(version) for version in HEADERS))
    assert {call.symbol for call in calls()} <= everywhere


def test_a_wrong_declaration_is_found(tmp_path: Path) -> None:
    lines = [
        "CHECK_CALL(cuMemFree_v2, (CUdeviceptr* pointer))",
        "CHECK_CALL(cuMemFree_v2, (CUdeviceptr pointer))",
        "CHECK_RESULT(CUDA_ERROR_OUT_OF_MEMORY, 3)",
        "CHECK_VALUE(ours::CU_EVENT_DISABLE_TIMING, CU_EVENT_INTERPROCESS)",
    ]
    assert run_checks("12.9", lines, tmp_path) == [
        "differs: signature of cuMemFree_v2",
        "differs: code of CUDA_ERROR_OUT_OF_MEMORY",
        "differs: value of ours::CU_EVENT_DISABLE_TIMING",
    ]


def test_the_lists_hold_what_is_known_to_be_there() -> None:
    assert len(manifest()) > 90
    assert len(all_hooks()) > 90
    assert (
        "ours::VRAMKIT_MEMHOSTREGISTER_DEVICEMAP",
        "CU_MEMHOSTREGISTER_DEVICEMAP",
    ) in constants()
    assert ("VRAMKIT_STREAM_PER_THREAD", "CU_STREAM_PER_THREAD") in constants()
    assert ("ours::CU_EVENT_DISABLE_TIMING", "CU_EVENT_DISABLE_TIMING") in constants()
    assert structures()["CUmemAllocationProp"] == [
        "type",
        "requestedHandleTypes",
        "location",
        "win32HandleMetaData",
        "allocFlags",
        "allocFlags.compressionType",
        "allocFlags.gpuDirectRDMACapable",
        "allocFlags.usage",
        "allocFlags.reserved",
    ]
    assert structures()["CUmemcpy3DOperand"] == [
        "type",
        "op",
        "op.ptr",
        "op.array",
        "op.ptr.ptr",
        "op.ptr.rowLength",
        "op.ptr.layerHeight",
        "op.ptr.locHint",
        "op.array.array",
        "op.array.offset",
    ]
    assert {"CUuuid", "CUmemLocation", "CUmemAccessDesc", "CUlaunchConfig"} < set(structures())
    assert {"CUresult", "CUdeviceptr", "CUstream", "CUhostFn", "CUmemLocationType"} < set(types())


def test_every_device_attribute_has_its_name_in_python() -> None:
    prefix = "CU_DEVICE_ATTRIBUTE_"
    names = {theirs.removeprefix(prefix) for _, theirs in constants() if theirs.startswith(prefix)}
    assert set(_core.device_attributes()) == names


def test_versions_and_suffixes_agree_with_the_typedef_header() -> None:
    """cudaTypedefs.h names each call with the version that brought it, per-thread ones apart."""
    known = set()
    for version in HEADERS:
        path = include_folder(version) / "cudaTypedefs.h"
        text = path.read_text(encoding="utf-8", errors="replace")
        known |= set(re.findall(r"\*PFN_(\w+?)_v(\d+)(_pt[sd][zs])?\)", text))
    versions = {(base, int(since)) for base, since, suffix in known if not suffix}
    suffixes = {base: suffix[1:] for base, _, suffix in known if suffix}
    wrong = [
        f"{call.symbol}: since {call.since}, suffix {call.suffix}; "
        f"known {sorted(v for b, v in versions if b == call.base)}, {suffixes.get(call.base)}"
        for call in calls()
        if (call.base, call.since) not in versions or suffixes.get(call.base, "none") != call.suffix
    ]
    assert wrong == []
