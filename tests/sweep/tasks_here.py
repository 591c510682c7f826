"""What tasks of these tests do, in worker processes that find this file by PYTHONPATH."""

import json
import os
import signal
import time
from pathlib import Path


def work(common):
    folder = Path(json.loads(common))

    def one(given):
        number, what = json.loads(given)
        with (folder / "runs").open("a") as file:
            file.write(f"{number} {os.getpid()}\n")
        if what == "raises":
            raise KeyError("its own error")
        if what == "dies" or (what == "dies once" and not (folder / f"died{number}").exists()):
            (folder / f"died{number}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "waits":
            (folder / "waiting").write_text(str(os.getpid()))
            while not (folder / "go").exists():
                time.sleep(0.01)
        if what == "prints":
            print("among the answers")
        return json.dumps(number * number).encode()

    return one


def no_work(common):
    raise RuntimeError("cannot be prepared")
