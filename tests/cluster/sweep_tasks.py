"""What tasks of the sweeps do, on workers of Ray that find this file by PYTHONPATH."""

import json
import os
import signal
import time
from pathlib import Path


def work(common):
    folder = Path(json.loads(common))

    def one(given):
        number, what = json.loads(given)
        if what == "dies once" and not (folder / f"died{number}").exists():
            (folder / f"died{number}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "raises":
            raise KeyError("its own error")
        if what == "waits":
            node = os.environ["VRAMKIT_NODE"]
            (folder / f"waiting{number}-{node}").touch()
            # On node c for ever: the test removes it.
            while node == "c" or not (folder / "go").exists():
                time.sleep(0.01)
        return json.dumps(number * number).encode()

    return one
