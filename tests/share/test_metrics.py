"""Prometheus metrics: the format, the labels by which clusters join them, and the dashboard."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from vramkit.share.daemon import metrics_server
from vramkit.share.daemon.metrics import metrics_text
from vramkit.share.daemon.metrics_server import MetricsServer
from vramkit.share.daemon.origin import origin_in, origin_of
from vramkit.share.settings import SettingError, ShareSettings, changed
from vramkit.share.status import CardStatus, DaemonStatus, ProgramOnCard, ProgramStatus, Status

DASHBOARD = Path(__file__).parents[2] / "deploy" / "grafana" / "vramkit.json"
UID = "1a2b3c4d-1111-2222-3333-444455556666"
SAMPLE = re.compile(r'([a-z_]+)\{((?:[a-z_]+="(?:[^"\\]|\\.)*",?)+)\} ([0-9.]+)')


@pytest.fixture
def text() -> str:
    card = CardStatus(0, "GPU-a", 100, 80, 60, 20, None)
    used = ProgramOnCard(0, 60, 70, 40, 30, 20, 10, 1000, 2000, 5, 0.5)
    program = ProgramStatus(
        3, 77, 0, 'a "b"\n\\', "idle", "swap", 1.0, 0, 0, 4, 1, 2.5, False, [], [used]
    )
    daemon = DaemonStatus(1, "/s", "0", True, 9.0, 30.0, None, 0)
    return metrics_text(
        Status(daemon, [card], [program]), "one", {3: {"slurm_job": "77"}, 4: {"slurm_job": "1"}}
    )


def test_every_sample_is_well_formed_and_names_its_node(text: str) -> None:
    samples = [line for line in text.splitlines() if not line.startswith("#")]
    matches = [SAMPLE.fullmatch(line) for line in samples]
    assert all(match is not None and 'node="one"' in match[2] for match in matches), samples
    program = next(line for line in samples if line.startswith("vramkit_program_swapped"))
    assert program == (
        'vramkit_program_swapped_bytes{node="one",pid="77",name="a \\"b\\"\\n\\\\",uid="0",'
        'slurm_job="77",card="GPU-a"} 30'
    )


@pytest.mark.parametrize(
    ("path", "labels"),
    [
        (
            "/kubepods.slice/kubepods-burstable.slice/"
            f"kubepods-burstable-pod{UID.replace('-', '_')}.slice/cri-containerd-{'a' * 64}.scope",
            {"pod_uid": UID, "container_id": "a" * 64},
        ),
        (f"/kubepods/besteffort/pod{UID}/{'b' * 64}", {"pod_uid": UID, "container_id": "b" * 64}),
        # As a container sees its neighbours.
        (
            f"/../../kubepods-pod{UID.replace('-', '_')}.slice/crio-{'c' * 64}.scope/nested",
            {"pod_uid": UID, "container_id": "c" * 64},
        ),
        # A static pod; containerd that was not told of systemd.
        (
            f"/system.slice/containerd.service/kubepods-burstable-pod{'d' * 32}.slice:"
            f"cri-containerd:{'e' * 64}",
            {"pod_uid": "d" * 32, "container_id": "e" * 64},
        ),
        ("/system.slice/slurmstepd.scope/job_42/step_0/user/task_0", {"slurm_job": "42"}),
        ("/system.slice/gpu1_slurmstepd.scope/job_42/step_batch", {"slurm_job": "42"}),
        ("/slurm/uid_1000/job_7", {"slurm_job": "7"}),
        ("/slurm_gpu1/uid_1000/job_7/step_0", {"slurm_job": "7"}),
        # Of somebody else: no job of Slurm, and no pod.
        ("/user.slice/job_7", {}),
        (f"/build/tripod{'a' * 32}", {}),
        (f"/docker/{'f' * 64}", {}),
        ("/user.slice/user-1000.slice/session-2.scope", {}),
    ],
)
def test_origin_is_in_the_control_group(path: str, labels: dict[str, str]) -> None:
    assert origin_in(f"12:pids:/\n0::{path}\n") == labels


def test_job_of_a_worker_of_ray_is_in_its_environment() -> None:
    for value, labels in (("0a000000", {"ray_job": "0a000000"}), ('x"} 1\n', {})):
        environment = {"FIRST": "1", "RAY_JOB_ID": value, "LAST": "1"}
        pipe = subprocess.PIPE
        process = subprocess.Popen(["cat"], env=environment, stdin=pipe, stdout=pipe, bufsize=0)
        try:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(b"x")
            process.stdout.read(1)  # it runs: before, it may have no environment yet
            found = origin_of(process.pid)
            assert {name: found[name] for name in found if name == "ray_job"} == labels
        finally:
            process.communicate()


def test_process_that_is_gone_has_no_origin() -> None:
    assert origin_of(2**30) == {}


def test_dashboard_asks_for_what_there_is(text: str) -> None:
    board = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    queries += [each["query"] for each in board["templating"]["list"] if each["type"] == "query"]
    told = {line.split("{")[0] for line in text.splitlines() if not line.startswith("#")}
    asked = {name for query in queries for name in re.findall(r"vramkit_[a-z_]+", query)}
    assert len(asked) >= 8 and asked <= told, asked - told
    labels = {name for name in re.findall(r'([a-z_]+)="', text)}
    by = {each.strip() for query in queries for group in re.findall(r"by \((.*?)\)", query)
          for each in group.split(",")}  # fmt: skip
    shown = {label for panel in board["panels"] for target in panel["targets"]
             for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])}  # fmt: skip
    assert by | shown <= labels
    places = [tuple(panel["gridPos"].values()) for panel in board["panels"]]
    assert len(set(places)) == len(places)
    assert len({panel["id"] for panel in board["panels"]}) == len(places)


def test_address_of_the_metrics_is_checked() -> None:
    assert changed(ShareSettings(), "metrics_host", "0.0.0.0").metrics_host == "0.0.0.0"
    with pytest.raises(SettingError, match=r"metrics_host is 'everywhere'; it may be an address"):
        changed(ShareSettings(), "metrics_host", "everywhere")


# Over HTTP


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        return int(unused.getsockname()[1])


async def asked(port: int, request: str) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{request}\r\n\r\n".encode())
    answer = await asyncio.wait_for(reader.read(), 60)
    writer.close()
    return answer


def test_a_name_that_is_no_text_costs_no_other_metric() -> None:
    async def run() -> None:
        server, port = MetricsServer(lambda: "a \udcff b\n"), free_port()
        await server.serve("127.0.0.1", port)
        for request in ("GET /metrics HTTP/1.1", "GET /metrics?collect=all HTTP/1.1"):
            head, _, body = (await asked(port, request)).partition(b"\r\n\r\n")
            assert b" 200 OK" in head and b"Content-Length: 6\r\n" in head + b"\r\n"
            assert body == b"a ? b\n"
        assert b" 404 " in await asked(port, "GET /metricsx HTTP/1.1")
        server.close()

    asyncio.run(run())


def test_of_two_places_at_once_the_later_one_counts() -> None:
    async def run() -> None:
        server, first, second = MetricsServer(lambda: "x\n"), free_port(), free_port()
        await asyncio.gather(server.serve("127.0.0.1", first), server.serve("127.0.0.1", second))
        assert b" 200 OK" in await asked(second, "GET /metrics HTTP/1.1")
        with pytest.raises(OSError, match="Connect call failed"):
            await asked(first, "GET /metrics HTTP/1.1")
        await server.serve("127.0.0.1", 0)
        with pytest.raises(OSError, match="Connect call failed"):
            await asked(second, "GET /metrics HTTP/1.1")

    asyncio.run(run())


@pytest.mark.parametrize("request_", ["", "GET /metrics HTTP/1.1\r\n\r\n"])
def test_who_is_too_slow_is_cut_off(request_: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that does not ask, and one that does not read what it has asked for."""
    monkeypatch.setattr(metrics_server, "SECONDS", 0.3)
    size = 64 << 20

    async def run() -> None:
        server, port = MetricsServer(lambda: "x" * size), free_port()
        await server.serve("127.0.0.1", port)
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(request_.encode())
        others: set[object] = set()
        async with asyncio.timeout(60):
            while not others:  # the server's task for this connection
                await asyncio.sleep(0.001)
                others = asyncio.all_tasks() - {asyncio.current_task()}
            while asyncio.all_tasks() - {asyncio.current_task()}:
                await asyncio.sleep(0.01)
            received = 0
            with suppress(ConnectionError):
                while piece := await reader.read(1 << 20):
                    received += len(piece)
        assert received < size
        writer.close()
        server.close()

    asyncio.run(run())
