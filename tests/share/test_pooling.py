"""`vramkit run --pool`: hooks in front of frameworks, and nothing else changed in the program."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from vramkit.share import import_hooks
from vramkit.share.pooling import FOLDER, pooling


@pytest.fixture
def frameworks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Modules with the frameworks' names, found before the real ones."""
    for name in import_hooks.FRAMEWORKS:
        package = tmp_path / name
        package.mkdir()
        (package / "__init__.py").write_text(f"order = ['{name}']\nfrom . import part\n")
        (package / "part.py").write_text("")
        for loaded in [each for each in sys.modules if each.split(".")[0] == name]:
            monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_each_framework_gets_its_pool_when_it_is_imported(
    frameworks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed: list[str] = []
    for name in import_hooks.FRAMEWORKS:
        module = ModuleType(f"vramkit.integrations.{name}")

        def install(name: str = name) -> None:
            # The framework is complete by then.
            installed.append(sys.modules[name].order[0])

        module.install = install  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, f"vramkit.integrations.{name}", module)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    import_hooks.install()
    assert installed == []
    for name in import_hooks.FRAMEWORKS:
        found = importlib.import_module(name)
        assert type(found.__spec__.loader).__name__ == "SourceFileLoader"  # type: ignore[union-attr]
        assert found.__loader__ is found.__spec__.loader  # type: ignore[union-attr]
    assert installed == list(import_hooks.FRAMEWORKS)
    for name in import_hooks.FRAMEWORKS:
        monkeypatch.delitem(sys.modules, name)
        monkeypatch.delitem(sys.modules, f"{name}.part")


def in_python(source: str, *folders: Path) -> subprocess.CompletedProcess[str]:
    with pooling() as variables:
        searched = os.pathsep.join([variables["PYTHONPATH"], *map(str, folders)])
    environment = {**os.environ, "PYTHONPATH": searched, "VRAMKIT_DRIVER": "sim"}
    return subprocess.run(
        [sys.executable, "-c", source], env=environment, capture_output=True, text=True, timeout=60
    )


def test_a_framework_that_cannot_have_a_pool_keeps_its_own(frameworks: Path) -> None:
    """The simulated GPU cannot serve frameworks: the program must not notice."""
    done = in_python("import rmm; print(rmm.order)", frameworks)
    assert (done.returncode, done.stdout) == (0, "['rmm']\n")


def test_a_framework_that_is_not_there_is_missing_as_ever(tmp_path: Path) -> None:
    done = in_python("import cupy_not_there, cupy")
    assert "No module named 'cupy_not_there'" in done.stderr


def test_the_sitecustomize_that_is_hidden_runs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.theirs = __name__, __file__\n")
    source = "import sys, sitecustomize; print(sys.theirs[0], sitecustomize.__file__)"
    done = in_python(source, tmp_path)
    assert done.stdout.split() == ["sitecustomize", str(tmp_path / "sitecustomize.py")]


def test_our_folder_has_one_module_alone() -> None:
    """It comes first in PYTHONPATH: whatever is in it would hide modules of the program."""
    assert [path.name for path in FOLDER.glob("*.py")] == ["sitecustomize.py"]
