"""Imported by Python at its start under `vramkit run --pool`; see vramkit.share.pooling."""

import sys


def _run_hidden() -> None:
    """The sitecustomize of the user or the system, which ours is in front of."""
    import importlib.machinery
    import importlib.util
    import os

    own = os.path.dirname(os.path.abspath(__file__))
    others = [path for path in sys.path if os.path.abspath(path or ".") != own]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        # Whoever asks for it later gets theirs, as without us.
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _install_hooks() -> None:
    try:
        from vramkit.share.import_hooks import install
    except ImportError:
        # Another Python, without vramkit: it runs as it would by itself.
        return
    install()


_install_hooks()
_run_hidden()
