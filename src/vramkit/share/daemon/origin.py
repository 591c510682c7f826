"""Which pod or job a process belongs to, by labels that clusters know: its control group says it,
or the environment that it was started with."""

from __future__ import annotations

import re
from pathlib import Path

# With systemd's driver the dashes of a pod's uid are underscores: "kubepods-pod1a2b3c4d_....slice".
# The uid of a static pod is 32 digits without any.
POD = re.compile(
    r"[/-]pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?=[./:]|$)"
)
# containerd without systemd's driver: "...slice:cri-containerd:ID".
CONTAINER = re.compile(r"(?:^|[-/:])([0-9a-f]{64})(?:\.scope)?(?:/|$)")
# Version 1 has "/slurm/uid_1/job_2" or "/slurm_NODE/uid_1/job_2", version 2
# "/system.slice/NODE_slurmstepd.scope/job_2".
SLURM_JOB = re.compile(r"/[^/]*slurm[^/]*/(?:uid_\d+/)?job_(\d+)(?:/|$)")


RAY_JOB = re.compile(rb"(?:^|\0)RAY_JOB_ID=([0-9a-f]{1,64})(?:\0|$)")


def origin_of(pid: int) -> dict[str, str]:
    """Labels of a process: of Kubernetes, of Slurm, of Ray, or none."""
    job = RAY_JOB.search(_read(pid, "environ"))
    found = origin_in(_read(pid, "cgroup").decode(errors="replace"))
    return found if job is None else found | {"ray_job": job[1].decode()}


def _read(pid: int, name: str) -> bytes:
    """Empty where the process is gone, or is another user's."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def origin_in(text: str) -> dict[str, str]:
    """`text`: of /proc/PID/cgroup; each line ends with a path."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        path = line.split(":", 2)[-1]
        pod = POD.search(path)
        if pod is not None:
            found["pod_uid"] = pod[1].replace("_", "-")
            container = CONTAINER.search(path)
            if container is not None:
                found["container_id"] = container[1]
        job = SLURM_JOB.search(path)
        if job is not None:
            found["slurm_job"] = job[1]
    return found
