"""Ray on this machine for a benchmark: one node, a daemon of its own, nothing left behind."""

import os
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

from vramkit.integrations.ray import node_environment, status
from vramkit.share.connect import Controls, NoDaemonError, ensure_daemon
from vramkit.share.settings import write_settings

MIB = 1 << 20
OBJECT_STORE = 75 * MIB  # the least that Ray takes; only small results travel
END_SECONDS = 60.0


def say(text):
    print(text, file=sys.stderr, flush=True)


@contextmanager
def one_node(settings, announced_mib, cpus, simulated_bytes):
    """Connected with Ray, whose node announces so much. `simulated_bytes`: of a simulated card."""
    import ray

    before = dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="vk-", dir="/tmp") as name:
        folder = Path(name)
        write_settings(folder / "vramkit" / "share.json", settings)
        os.environ |= {
            "VRAMKIT_SOCKET": str(folder / "daemon.sock"),
            "XDG_RUNTIME_DIR": name,
            "XDG_CONFIG_HOME": name,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AUTH_MODE": "disabled",
            **node_environment(),
        }
        if os.environ.get("VRAMKIT_DRIVER") == "sim":
            card = f"ray-{os.getpid()},clock=wall,checker=off,capacity={simulated_bytes}"
            os.environ["VRAMKIT_SIM"] = f"card={card}"
        try:
            ensure_daemon(folder / "daemon.sock")
            ray.init(
                num_cpus=cpus,
                num_gpus=0,
                resources={"vram_mib": announced_mib},
                include_dashboard=False,
                log_to_driver=False,
                object_store_memory=OBJECT_STORE,
                _temp_dir=f"{name}/ray",
            )
            yield ray
        finally:
            ray.shutdown()
            _stop_daemon(folder / "daemon.sock")
            os.environ.clear()
            os.environ.update(before)


def _stop_daemon(path):
    try:
        with Controls(path) as controls:
            controls.ask("stop")
    except NoDaemonError:
        return
    end = time.monotonic() + END_SECONDS
    while path.exists() and time.monotonic() < end:
        time.sleep(0.05)


def programs():
    return [each for node in status() if node.status for each in node.status.programs]


def wait_until_nobody_is_there():
    end = time.monotonic() + END_SECONDS
    while programs():
        if time.monotonic() > end:
            raise TimeoutError(f"{len(programs())} programs are still connected")
        time.sleep(0.1)


class Adder:
    """An actor that adds one to each word of an array, again and again."""

    def __init__(self, nbytes):
        import vramkit

        self.device = vramkit.driver.open().device()
        self.words = nbytes // 8
        self.stream = self.device.stream()
        self.data = self.device.alloc(4 * self.words)
        self.ones = self.device.alloc(4 * self.words)
        self.clear()

    def clear(self):
        fill = self.device.kernels.fill
        fill(self.data, self.words, 0, stream=self.stream)
        fill(self.ones, self.words, 1, stream=self.stream)
        self.stream.synchronize()

    def work(self, rounds, batch=8):
        """When it began and ended, by the machine's clock. A wait after each batch of launches, as
        after a training step."""
        began = time.time()
        for done in range(rounds):
            self.device.kernels.add(self.data, self.data, self.ones, self.words, stream=self.stream)
            if done % batch == batch - 1:
                self.stream.synchronize()
        self.stream.synchronize()
        return began, time.time()

    def is_right(self, rounds):
        with self.device.alloc(8) as total, self.device.alloc_pinned(8) as result:
            self.device.fill(total, 0, stream=self.stream)
            self.device.kernels.checksum(self.data, self.words, total, stream=self.stream)
            self.device.copy(result, total, stream=self.stream)
            self.stream.synchronize()
            return int.from_bytes(result.read(), "little") == rounds * self.words


def wait_for(ray, references, what):
    """The results, with a line of progress on stderr now and then."""
    left, began = list(references), time.monotonic()
    while left:
        _, left = ray.wait(left, num_returns=len(left), timeout=10)
        say(f"{what}: {len(references) - len(left)}/{len(references)}, "
            f"{time.monotonic() - began:.0f} s")  # fmt: skip
    return ray.get(references)
