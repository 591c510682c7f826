"""One clear error each: a framework that is not there, or cannot work with what is there."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from vramkit import Pool
from vramkit.driver import Driver
from vramkit.integrations import cupy, rmm, torch
from vramkit.integrations._frameworks import imported

from .stand_ins import add_module


@pytest.mark.parametrize(
    ("integration", "call", "package"),
    [
        (torch, "install", "torch"),
        (torch, "mem_pool", "torch"),
        (cupy, "install", "cupy-cuda13x"),
        (cupy, "allocator", "cupy-cuda13x"),
        (rmm, "install", "rmm-cu13"),
        (rmm, "memory_resource", "rmm-cu13"),
    ],
)
def test_missing_framework_is_named(
    monkeypatch: pytest.MonkeyPatch, integration: object, call: str, package: str
) -> None:
    for name in ("torch", "cupy", "rmm"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ModuleNotFoundError, match=f"not installed; install .*{package}"):
        getattr(integration, call)()


def test_missing_cuda_core_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.core", None)
    monkeypatch.delitem(sys.modules, "vramkit.integrations.cuda_core", raising=False)
    with pytest.raises(ModuleNotFoundError, match=r"needs cuda\.core, .*; install cuda-core"):
        importlib.import_module("vramkit.integrations.cuda_core")


def test_what_a_framework_misses_itself_is_its_own_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "broken_framework.py").write_text("import a_package_nobody_has\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="No module named 'a_package_nobody_has'"):
        imported("broken_framework", "broken-framework")


def test_torch_without_cuda_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _add_torch(monkeypatch, built=False)
    with pytest.raises(RuntimeError, match=r"PyTorch \(1\.0\+cpu\) was built without CUDA"):
        torch.install()
    with pytest.raises(RuntimeError, match="built without CUDA"):
        torch.mem_pool()


@pytest.mark.sim_only
@pytest.mark.parametrize("given", ["a pool", "the environment"])
def test_simulated_gpu_is_refused(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    _add_torch(monkeypatch, built=True)
    for name in ("cupy", "cupy.cuda", "cupy.cuda.memory", "rmm"):
        add_module(monkeypatch, name)
    monkeypatch.setenv("VRAMKIT_DRIVER", "sim")
    with Pool(device=driver.device()) as pool:
        chosen = pool if given == "a pool" else None
        for call, framework in (
            (torch.install, "PyTorch"),
            (torch.mem_pool, "PyTorch"),
            (cupy.install, "CuPy"),
            (cupy.allocator, "CuPy"),
            (rmm.install, "RMM"),
            (rmm.memory_resource, "RMM"),
        ):
            with pytest.raises(RuntimeError, match=f"is simulated, and {framework} needs NVIDIA's"):
                call(chosen)


def _add_torch(monkeypatch: pytest.MonkeyPatch, *, built: bool) -> None:
    backends = SimpleNamespace(cuda=SimpleNamespace(is_built=lambda: built))
    add_module(monkeypatch, "torch", __version__="1.0+cpu", backends=backends)
