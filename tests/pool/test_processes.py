"""Forks, and the end of the interpreter."""

from __future__ import annotations

import subprocess
import sys

import pytest

OPEN = """
import gc, os, pathlib, sys, warnings, vramkit
driver = vramkit.driver.open(sys.argv[1])
device = driver.device()
stream = device.stream()
pool = vramkit.Pool(device=device, **eval(sys.argv[2]))

def wait_for_the_thread():
    while pool.config.background and "vramkit-pool" not in thread_names(): pass

def wait_until_the_thread_sleeps():
    for task in pathlib.Path("/proc/self/task").iterdir():
        if (task / "comm").read_text().strip() == "vramkit-pool":
            while (task / "stat").read_text().rpartition(")")[2].split()[0] != "S": pass

def thread_names():
    tasks = pathlib.Path("/proc/self/task").iterdir()
    return [(task / "comm").read_text().strip() for task in tasks]
"""

FORK = """
address = pool.malloc(4096, stream)
buffer = pool.allocate(4096, stream=stream)
pool.free(pool.malloc(8 << 20, stream))
wait_for_the_thread()
pool.configure(thread_cache_max_blocks=0)
pool.free(pool.malloc(9 << 20, stream))  # with a fence
if sys.argv[4] == "asleep": wait_until_the_thread_sleeps()
warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads is what is tested
text = repr(pool)
child = os.fork()
if child == 0:
    for name, call in {
        "malloc": lambda: pool.malloc(4096, stream),
        "free": lambda: pool.free(address),
        "stats": pool.stats,
        "trim": pool.trim,
        "step": pool.step,
        "defragment": pool.defragment,
        "layout": pool._layout,
        "preallocate": lambda: pool.preallocate(4096, 1),
        "close": pool.close,
        "configure": lambda: pool.configure(limit=None),
        "print_stats": pool.print_stats,
        "snapshot": pool.snapshot,
        "another": vramkit.Pool,
        "another of the device": lambda: vramkit.Pool(device=device),
        "instance": vramkit.Pool.instance,
        "instance of the device": lambda: vramkit.Pool.instance(device),
    }.items():
        try:
            call()
        except vramkit.driver.ClosedError as error:
            print(name, error)
    assert repr(pool) == text.removesuffix(">") + ", closed>", repr(pool)
    if sys.argv[3] == "drops":
        buffer.close()
        del buffer, pool
        gc.collect()
    sys.stdout.flush()
    if sys.argv[3] == "exits":
        sys.exit(0)
    os._exit(0)
_, status = os.waitpid(child, 0)
assert status == 0, status
pool.free(address)
buffer.close()
pool.configure(thread_cache_max_blocks=64)
pool.free(pool.malloc(10 << 20, stream))
assert pool.check_invariants() == ""
pool.close()
print("the parent went on")
"""

EXITS = {
    "live buffers": """
buffers = [pool.allocate(size, stream=stream) for size in (100, 5000, 3 << 20)]
raw = pool.malloc(4096)
""",
    "buffers in a cycle": """
class Holder: pass
holder = Holder()
holder.self, holder.all = holder, [pool.allocate(100, stream=stream), pool, stream]
del pool, stream
""",
    "the process-wide pool": """
vramkit.Pool.instance(device).malloc(4096)
kept = vramkit.Pool.instance(device).allocate(3 << 20, stream=stream)
""",
    "work under way": """
buffer = pool.allocate(3 << 20, stream=stream)
device.kernels.spin(200_000_000, stream=stream)
device.fill(buffer.address, 1, 3 << 20, stream=stream)
pool.free(pool.malloc(4 << 20, stream))
""",
    "its thread at work": """
pool.configure(decay_ms=1, defrag_interval_ms=1)
pool.free(pool.malloc(40 << 20, stream))
blocks = [pool.malloc(2 << 20, stream) for _ in range(20)]
for address in blocks[::2]: pool.free(address)
wait_for_the_thread()
""",
    "a thread at work": """
import threading
def work():
    mine = device.stream()
    while True:
        pool.free(pool.malloc(5000, mine))
threading.Thread(target=work, daemon=True).start()
while pool.stats().allocation_count < 100: pass
""",
}


def run(
    program: str, spec: str, settings: dict[str, object] | None = None, *words: str
) -> subprocess.CompletedProcess[str]:
    program = OPEN + program
    command = [sys.executable, "-W", "error", "-c", program, spec, repr(settings or {}), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("way", ["drops", "exits", "ends at once"])
@pytest.mark.parametrize("thread", ["none", "at work", "asleep"])
def test_a_forked_child_is_refused_and_the_parent_goes_on(
    request: pytest.FixtureRequest, thread: str, way: str
) -> None:
    spec = request.config.getoption("driver")
    settings: dict[str, object] = {"background": thread != "none"}
    if thread == "at work":
        settings |= {"decay_ms": 1, "defrag_interval_ms": 1}
    elif thread == "asleep":
        settings |= {"decay_ms": None, "defrag_interval_ms": 600_000}
    done = run(FORK, spec, settings, way, thread)
    words = "this Pool belongs to the parent process: a forked child cannot use it"
    names = [
        "malloc",
        "free",
        "stats",
        "trim",
        "step",
        "defragment",
        "layout",
        "preallocate",
        "close",
        "configure",
        "print_stats",
        "snapshot",
    ]
    said = [f"{name} {words}" for name in names]
    made = ["another", "another of the device", "instance", "instance of the device"]
    words = "the driver belongs to the parent process: a forked child cannot use it"
    said += [f'{name} {words}; start children by "spawn"' for name in made]
    assert (done.stderr, done.stdout.splitlines()) == ("", [*said, "the parent went on"])


@pytest.mark.parametrize("clock", ["virtual", "wall"])
@pytest.mark.parametrize("program", EXITS)
def test_exit_is_quiet(
    request: pytest.FixtureRequest, program: str, clock: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = request.config.getoption("driver")
    if spec == "cuda" and clock == "virtual":
        pytest.skip("needs the simulated GPU: a card has one clock")
    monkeypatch.setenv("VRAMKIT_SIM", f"clock={clock}")
    done = run(EXITS[program], spec)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
