"""A program may end with anything open: it says nothing, hangs nowhere and exits with 0."""

from __future__ import annotations

import subprocess
import sys

import pytest

OPEN = """
import sys, vramkit
driver = vramkit.driver.open(sys.argv[1])
device = driver.device()
stream = device.stream()
event = stream.record()
"""

PROGRAMS = {
    "everything open": """
memory, pinned = device.alloc(4096), device.alloc_pinned(4096)
registered = device.register(bytearray(1 << 16))
addresses, physical = device.reserve(device.granularity), device.create(device.granularity)
addresses.map(physical)
view = pinned.view()
""",
    "everything in a cycle": """
class Holder: pass
holder = Holder()
holder.self, holder.all = holder, [device.alloc(4096), device.alloc_pinned(4096), stream, event]
del stream, event
""",
    "host function pending": """
device.kernels.spin(300_000_000, stream=stream)
stream.host_function(lambda: stream.query)
""",
    "host function runs at exit": """
import threading
entered = threading.Event()
def slow():
    entered.set()
    for _ in range(200_000): pass
stream.host_function(slow)
threading.Thread(target=stream.synchronize).start()
entered.wait()
""",
    "timeline open": """
timeline = device.timeline().__enter__()
device.kernels.spin(1000, stream=stream)
""",
    "thread waits": """
import threading
device.kernels.spin(300_000_000, stream=stream)
threading.Thread(target=stream.synchronize, daemon=True).start()
""",
}


@pytest.mark.parametrize("clock", ["virtual", "wall"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_exit_is_quiet(
    request: pytest.FixtureRequest, program: str, clock: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = request.config.getoption("driver")
    if spec == "cuda" and clock == "virtual":
        pytest.skip("a real card has one clock")
    monkeypatch.setenv("VRAMKIT_SIM", f"clock={clock}")
    command = [
        sys.executable,
        "-W",
        "ignore::ResourceWarning",
        "-c",
        OPEN + PROGRAMS[program],
        spec,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_unclosed_memory_is_named_at_exit(request: pytest.FixtureRequest) -> None:
    program = OPEN + "memory = device.alloc(4096)\n"
    command = [sys.executable, "-W", "default", "-c", program, request.config.getoption("driver")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "ResourceWarning: unclosed <DeviceMemory of 4096 bytes at 0x" in done.stderr
