"""Slurm on this machine, one node with a simulated card, as the user that runs the tests."""

from __future__ import annotations

import getpass
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

from vramkit.share.connect import Controls, NoDaemonError

from .nodes import MIB, processes_in, until

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "deploy" / "slurm"
NEEDED = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scontrol")
CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
GresTypes=vram
Prolog={folder}/scripts/prolog
Epilog={folder}/scripts/epilog
TaskProlog={folder}/scripts/task_prolog
NodeName={host} NodeAddr=127.0.0.1 CPUs={cores} Gres=vram:{mib}M State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES OverSubscribe=YES:8 State=UP
"""


def missing() -> list[str]:
    """Slurm's daemons are in folders that are not everybody's."""
    return [each for each in NEEDED if shutil.which(each, path=search_path()) is None]


def search_path() -> str:
    return os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/sbin"])


class Slurm:
    def __init__(self, folder: Path, mib: int) -> None:
        self.folder = folder
        self.jobs = folder / "jobs"
        self.socket = folder / "run" / "daemon.sock"
        self._started: list[subprocess.Popen[bytes]] = []
        for name in ("state", "spool", "vramkit"):
            (folder / name).mkdir()
        shutil.copytree(SCRIPTS, folder / "scripts")
        settings = {"quantum": 0.05, "reserve": 16 * MIB, "idle_exit": 30.0}
        (folder / "vramkit" / "share.json").write_text(json.dumps(settings))
        with (
            socket.create_server(("127.0.0.1", 0)) as one,
            socket.create_server(("127.0.0.1", 0)) as two,
        ):
            ports = one.getsockname()[1], two.getsockname()[1]
        self.host = socket.gethostname().partition(".")[0]
        (folder / "slurm.conf").write_text(
            CONFIGURATION.format(
                host=self.host,
                user=getpass.getuser(),
                folder=folder,
                ports=ports,
                cores=os.cpu_count(),
                mib=mib,
            )
        )
        (folder / "gres.conf").write_text(f"Name=vram Count={mib}M\n")
        self.environment = {
            **os.environ,
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), search_path()]),
            "SLURM_CONF": str(folder / "slurm.conf"),
        }
        self.write_environment()

    def write_environment(self, **changed: str) -> None:
        """That of the scripts: Slurm gives them none of its own."""
        variables = {
            "PATH": self.environment["PATH"],
            "VRAMKIT_SOCKET": str(self.socket),
            "VRAMKIT_JOBS": str(self.jobs),
            "XDG_CONFIG_HOME": str(self.folder),
            "XDG_RUNTIME_DIR": str(self.folder),
            **changed,
        }
        lines = [f"export {name}='{value}'\n" for name, value in variables.items()]
        (self.folder / "scripts" / "environment").write_text("".join(lines))

    def start(self) -> None:
        key = self.folder / "key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        # munge refuses a socket that others cannot reach.
        self.folder.chmod(0o755)
        place = [f"--socket={self.folder}/munge.socket"]
        place += [f"--{each}-file={self.folder}/munge.{each}" for each in ("pid", "log", "seed")]
        self._start("munged", "--force", "--foreground", f"--key-file={key}", *place)
        until((self.folder / "munge.socket").exists)
        self._start("slurmctld", "-D")
        self._start("slurmd", "-D")
        until(lambda: "idle" in self.run("sinfo", "-h", "-o", "%T").stdout)

    def _start(self, *command: str) -> None:
        log = (self.folder / f"{command[0]}.out").open("wb")
        with log:
            self._started.append(
                subprocess.Popen(command, env=self.environment, stdout=log, stderr=log)
            )

    def run(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            env=self.environment | variables,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def begin(self, *command: str, **variables: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command, env=self.environment | variables, stdout=subprocess.PIPE, text=True
        )

    def stop(self) -> None:
        try:
            with Controls(self.socket) as controls:
                controls.ask("stop")
        except NoDaemonError:
            pass
        for process in reversed(self._started):
            process.terminate()
            process.wait(30)
        until(lambda: not processes_in(self.folder), lambda: processes_in(self.folder))
