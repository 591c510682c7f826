"""Forks, and the end of the interpreter."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

OPEN = """
import gc, os, sys, vramkit
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from resources.makers import MAKERS, layers
from resources.capsules import Consumer
driver = vramkit.driver.open(sys.argv[1])
device = driver.device()
stream = device.stream()
resources = {name: make(device, Path(sys.argv[3])) for name, make in MAKERS.items()}
"""

FORK = """
addresses = {name: resource.malloc(4096, stream) for name, resource in resources.items()}
buffers = [resource.allocate(4096, stream=stream) for resource in resources.values()]
dropped = [resource.allocate(4096, stream=stream) for resource in resources.values()]
child = os.fork()
if child == 0:
    for name, resource in resources.items():
        assert resource.closed
        assert "closed" in repr(resource)
        for call in (
            lambda: resource.malloc(4096),
            lambda: resource.free(addresses[name]),
            lambda: MAKERS[name](device, Path(sys.argv[3])),
        ):
            try:
                call()
            except vramkit.driver.ClosedError as error:
                assert "a forked child cannot use it" in str(error), error
            else:
                print(name, "was not refused")
    for buffer in buffers:
        buffer.close()
    del dropped, resources, resource
    gc.collect()
    sys.stdout.flush()
    os._exit(0)
_, status = os.waitpid(child, 0)
assert status == 0, status
del dropped
for buffer in buffers:
    buffer.close()
for name, resource in resources.items():
    resource.free(addresses[name])
    resource.free(resource.malloc(1 << 20, stream))
    for layer in layers(resource):
        layer.close()
print("the parent went on")
"""

EXITS = {
    "live blocks": """
buffers = [resource.allocate(5000, stream=stream) for resource in resources.values()]
raw = [resource.malloc(5000, stream) for resource in resources.values()]
""",
    "work under way": """
buffers = [resource.allocate(5000, stream=stream) for resource in resources.values()]
device.kernels.spin(200_000_000, stream=stream)
for buffer in buffers:
    device.fill(buffer, 1, stream=stream)
""",
    "exports": """
kept = [Consumer(resource.allocate(99).__dlpack__()) for resource in resources.values()]
capsules = [resource.allocate(99).__dlpack__() for resource in resources.values()]
import builtins
class AtTheEnd:
    def __del__(self, kept=kept):
        for consumer in kept:
            consumer.done()
builtins.at_the_end = AtTheEnd()
""",
}


def run(program: str, spec: str, folder: Path) -> subprocess.CompletedProcess[str]:
    tests = str(Path(__file__).parents[1])
    command = [sys.executable, "-W", "error", "-c", OPEN + program, spec, tests, str(folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_forked_child_is_refused_and_the_parent_goes_on(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    done = run(FORK, request.config.getoption("driver"), tmp_path)
    assert (done.stderr, done.stdout) == ("", "the parent went on\n")


@pytest.mark.parametrize("program", EXITS)
def test_exit_is_quiet(request: pytest.FixtureRequest, program: str, tmp_path: Path) -> None:
    done = run(EXITS[program], request.config.getoption("driver"), tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
