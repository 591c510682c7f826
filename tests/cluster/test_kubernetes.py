"""The device plugin against a kubelet: registration, health, allocation, CDI files, clean-up."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from vramkit.cli.app import main
from vramkit.cluster import cards as cluster_cards
from vramkit.cluster.cards import Card, Probe
from vramkit.driver.opening import sim_folder
from vramkit.share import paths
from vramkit.share.connect import Controls, NoDaemonError, connect
from vramkit.share.protocol import VERSION, Hello, encode

from .nodes import MIB, until

grpc = pytest.importorskip("grpc", reason="grpcio is not installed: vramkit[kubernetes]")

from vramkit.integrations.kubernetes import cdi, libraries, units  # noqa: E402
from vramkit.integrations.kubernetes.api import MESSAGES  # noqa: E402
from vramkit.integrations.kubernetes.kubelet import KubeletError  # noqa: E402

from .plugin_node import SETTINGS, A, B, Node  # noqa: E402

pytestmark = [pytest.mark.sim_only, pytest.mark.filterwarnings("ignore::ResourceWarning")]


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    folder = Path(tempfile.mkdtemp(prefix="vk-", dir="/tmp"))
    (folder / "vramkit").mkdir()
    (folder / "vramkit" / "share.json").write_text(SETTINGS)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    made = Node(folder)
    made.kubelet.start()
    try:
        yield made
    finally:
        made.stop()
        made.stop_daemon()
        made.kubelet.stop()
        assert not list(made.places.plugins.glob("vramkit*"))
        shutil.rmtree(folder)


# With a kubelet


def test_registers_and_lists_units_of_all_cards(node: Node) -> None:
    node.start(oversubscription=1.5)
    found = node.kubelet.devices()
    (request,) = node.kubelet.registered
    assert request.version == "v1beta1"
    assert request.resource_name == "vramkit.dev/vram-64mib"
    assert request.options.get_preferred_allocation_available
    assert (node.places.plugins / request.endpoint).is_socket()
    per_card = [
        sum(units.tag_of(each) == units.card_tag(uuid) for each in found) for uuid in (A, B)
    ]
    assert per_card == [24, 48]
    assert set(found.values()) == {"Healthy"}


def test_container_gets_the_gate_the_limit_and_the_socket(node: Node) -> None:
    node.start()
    answer = node.kubelet.admit("pod", 4)
    names = [each.name for each in answer.cdi_devices]
    assert names == [f"vramkit.dev/vram={A}-256mib"]
    assert dict(answer.envs) == {"NVIDIA_VISIBLE_DEVICES": A}
    edits = node.specs()[names[0]]
    told = dict(each.split("=", 1) for each in edits["env"])
    assert told["VRAMKIT_SHARE_MEMORY"] == str(256 * MIB)
    assert told["VRAMKIT_SHARE"] == "swap"
    inside = {Path(each["containerPath"]): Path(each["hostPath"]) for each in edits["mounts"]}
    preload, socket = Path(told["LD_PRELOAD"]), Path(told["VRAMKIT_SHARE_SOCKET"])
    assert (inside[preload.parent] / preload.name).is_file()
    assert (inside[preload.parent] / "libvramkit_share.so").is_file()
    assert (inside[socket.parent] / socket.name).is_socket()
    assert all("ro" in each["options"] for each in edits["mounts"])
    # A pod's manifest may say these itself.
    assert not {"VRAMKIT_SHARE_WEIGHT", "VRAMKIT_SHARE_PRIORITY"} & set(told)


def test_container_has_nothing_of_the_daemon_but_its_socket(node: Node) -> None:
    """Root of any container could hold the lock, and read the list of programs."""
    serve = (
        "import sys; from pathlib import Path\n"
        "from vramkit.share.daemon.process import serve_in_foreground\n"
        "serve_in_foreground(Path(sys.argv[1]), system=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", serve, str(node.socket)]) as daemon:
        try:
            until(node.socket.is_socket)
            with connect(node.socket) as client:
                client.sendall(encode(Hello(VERSION, 1, 1, 1000, 0, 0, 0, "program")))
                assert client.recv(1)
                node.start()
                answer = node.kubelet.admit("pod", 4)
                edits = node.specs()[answer.cdi_devices[0].name]
                mounted = {Path(each["hostPath"]) for each in edits["mounts"]}
                assert node.socket.parent in mounted
                assert [each.name for each in node.socket.parent.iterdir()] == ["daemon.sock"]
                for file in (paths.lock_file, paths.clients_file):
                    found = file(node.socket, system=True)
                    assert found.stat().st_mode & 0o077 == 0
                    assert not any(found.is_relative_to(each) for each in mounted)
        finally:
            node.stop()
            daemon.terminate()


def test_users_of_containers_can_read_and_not_write(node: Node) -> None:
    """Whatever the plugin's own mask is."""
    before = os.umask(0o077)
    try:
        node.start()
        node.kubelet.admit("pod", 1)
    finally:
        os.umask(before)
    (spec,) = node.places.cdi.iterdir()
    (gate,) = node.places.libraries.iterdir()
    modes = {each.name: each.stat().st_mode & 0o777 for each in (gate, *gate.iterdir())}
    assert spec.stat().st_mode & 0o777 == 0o644
    assert set(modes.values()) == {0o755}, modes


@pytest.mark.parametrize(
    ("nvidia", "names", "variables"),
    [("cdi", [f"nvidia.com/gpu={A}"], {}), ("none", [], {})],
)
def test_card_itself_comes_from_nvidia(
    node: Node, nvidia: Any, names: list[str], variables: dict[str, str]
) -> None:
    node.start(nvidia=nvidia)
    answer = node.kubelet.admit("pod", 1)
    assert [each.name for each in answer.cdi_devices][1:] == names
    assert dict(answer.envs) == variables


IN_CONTAINER = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
context, free, total, address = (ctypes.c_uint64() for _ in range(4))
cuda.cuInit(0)
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
cuda.cuCtxSetCurrent(context)
cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
sizes = 60, 5
print(total.value, *(cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size << 20))
                     for size in sizes))
"""


def test_what_a_container_gets_enforces_its_limit(node: Node) -> None:
    """A program with the variables of the CDI file, the mounts' paths replaced by the host's."""
    node.start()
    answer = node.kubelet.admit("pod", 1)
    edits = node.specs()[answer.cdi_devices[0].name]
    told = dict(each.split("=", 1) for each in edits["env"])
    for mount in edits["mounts"]:
        for name, value in told.items():
            told[name] = value.replace(mount["containerPath"], mount["hostPath"])
    sim = f"card=k8s-{os.getpid()},clock=wall,capacity=256MiB,checker=off"
    # The driver of the container, which finds the gate before it.
    driver = str(sim_folder() / "libcuda.so.1")
    environment = {**os.environ, **told, "VRAMKIT_GATE_DRIVER": driver, "VRAMKIT_SIM": sim}
    environment.pop("VRAMKIT_DRIVER", None)
    done = subprocess.run(
        [sys.executable, "-c", IN_CONTAINER],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    # Its own memory and no more: error 2 is out of memory.
    assert done.stdout.split() == [str(64 * MIB), "0", "2"], done.stderr


def test_mib_of_a_large_card_go_through_the_messages_of_a_kubelet(node: Node) -> None:
    """With gRPC's limit of 4 MiB, which a kubelet leaves as it is."""
    node.cards = [(A, 140 << 30)]
    node.start(unit=1, oversubscription=1.25)
    assert len(node.kubelet.healthy()) == 140 * 1024 * 5 // 4
    answer = node.kubelet.admit("pod", 100 * 1024)
    assert answer.cdi_devices[0].name == f"vramkit.dev/vram={A}-102400mib"
    assert node.kubelet.resource == "vramkit.dev/vram-mib"


def test_what_no_card_has_alone_is_refused_with_the_reason(node: Node) -> None:
    node.start()
    node.kubelet.admit("first", 30)
    with pytest.raises(grpc.RpcError, match="a container's memory is on one card"):
        node.kubelet.admit("second", 17)
    assert node.kubelet.admit("third", 16).cdi_devices[0].name.startswith(f"vramkit.dev/vram={A}")


def test_container_larger_than_its_card_is_refused(node: Node) -> None:
    """Oversubscribed cards have more units than memory."""
    node.start(oversubscription=4)
    with pytest.raises(grpc.RpcError, match="cannot be larger than its card"):
        node.kubelet.admit("pod", 64)


@pytest.mark.parametrize("removes", [True, False], ids=["sockets removed", "sockets left"])
def test_registers_again_with_a_kubelet_that_was_restarted(node: Node, removes: bool) -> None:
    node.start()
    before = node.kubelet.devices()
    node.kubelet.admit("pod", 2)
    node.kubelet.restart(removes=removes)
    until(lambda: node.kubelet.registered)
    assert node.kubelet.devices() == before
    assert node.kubelet.admit("another", 2).cdi_devices


def test_waits_for_a_kubelet_that_is_not_there_yet(node: Node) -> None:
    node.kubelet.stop()
    (node.places.plugins / "kubelet.sock").unlink(missing_ok=True)
    node.start()
    until(lambda: node.agent._with_daemon)
    node.kubelet.start()
    assert node.kubelet.devices()


def test_socket_that_was_removed_is_made_again(node: Node) -> None:
    node.start()
    node.kubelet.devices()
    node.agent.socket.unlink()
    until(lambda: len(node.kubelet.registered) == 2)
    until(node.agent.socket.is_socket)
    assert node.kubelet.admit("pod", 1).cdi_devices


def test_stream_that_the_kubelet_ends_is_opened_again(node: Node) -> None:
    """Both sockets are as they were; only another registration makes the kubelet ask again."""
    node.start()
    before = node.kubelet.devices()
    for times in (2, 3):
        node.kubelet.lists.clear()
        node.kubelet.end_stream()
        until(lambda times=times: len(node.kubelet.registered) == times)  # type: ignore[misc]
        assert node.kubelet.devices() == before
    assert node.kubelet.admit("pod", 1).cdi_devices


def test_second_plugin_of_a_node_ends_and_the_first_goes_on(node: Node) -> None:
    first = node.start()
    node.kubelet.devices()
    made = first.socket.stat().st_ino
    second = Node(node.folder)
    try:
        second.start()
        until(lambda: second.problem is not None)
    finally:
        second.stop()
    assert isinstance(second.problem, KubeletError)
    assert "another plugin serves" in str(second.problem)
    assert first.socket.stat().st_ino == made and len(node.kubelet.registered) == 1
    assert node.kubelet.admit("pod", 1).cdi_devices


def test_socket_of_a_plugin_that_was_killed_is_replaced(node: Node) -> None:
    path = node.places.plugins / "vramkit.dev-vram-64mib.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    node.start()
    assert node.kubelet.devices() and node.agent.socket == path


def test_plugin_whose_socket_another_one_has_taken_ends(node: Node) -> None:
    node.start()
    node.kubelet.devices()
    other = node.places.plugins / "other"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(other))
        server.listen()
        other.rename(node.agent.socket)
        until(lambda: node.problem is not None)
    assert "another plugin serves" in str(node.problem)
    node.agent.socket.unlink(missing_ok=True)  # which nobody serves any more


def test_card_that_has_just_failed_takes_no_container(node: Node) -> None:
    """The kubelet asks before it has heard of it."""
    node.start()
    ids = node.kubelet.healthy()[:1]
    request = MESSAGES["AllocateRequest"](
        container_requests=[MESSAGES["ContainerAllocateRequest"](devices_ids=ids)]
    )
    plugin = node.agent._plugin
    assert plugin.Allocate(request, Refusing()).container_responses
    cards = [Card(A, 1 << 30, 1 << 30, 1 << 30)]
    plugin.update(cards, [])
    with pytest.raises(grpc.RpcError, match=f"{A} takes no container now"):
        plugin.Allocate(request, Refusing())


class Refusing:
    def abort(self, code: Any, text: str) -> None:
        raise grpc.RpcError(text)


def test_card_that_fails_is_unhealthy_until_it_is_back(node: Node) -> None:
    node.start()
    assert len(node.kubelet.healthy()) == 48
    node.cards = [(A, 1024 * MIB)]
    until(lambda: len(node.kubelet.healthy()) == 16)
    assert len(node.kubelet.devices()) == 48
    node.cards = []  # the driver itself fails
    until(lambda: node.kubelet.healthy() == [])
    node.cards = [(A, 1024 * MIB), (B, 2048 * MIB)]
    until(lambda: len(node.kubelet.healthy()) == 48)


def test_without_a_daemon_no_card_takes_another_pod(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.start()
    assert len(node.kubelet.healthy()) == 48
    with Controls(node.socket) as controls:
        controls.ask("configure", name="oversubscription", value="2")
    until(lambda: len(node.kubelet.healthy()) == 96)
    (node.folder / "vramkit" / "share.json").write_text(SETTINGS)
    from vramkit.share import keeper

    def refused(path: Path) -> None:
        raise NoDaemonError("none")

    with monkeypatch.context() as without:
        without.setattr(keeper, "ensure_daemon", refused)
        node.stop_daemon()
        until(lambda: node.kubelet.healthy() == [])
        # The node has as much as before, and gives out none of it.
        assert len(node.kubelet.devices()) == 96
    until(lambda: len(node.kubelet.healthy()) == 48)


def test_plugin_that_the_kubelet_refuses_ends_with_its_reason(node: Node) -> None:
    node.kubelet.refuses = "the name is taken"
    node.start()
    until(lambda: node.problem is not None)
    assert isinstance(node.problem, KubeletError)
    assert "refuses vramkit.dev/vram-64mib: the name is taken" in str(node.problem)


def test_files_go_with_the_pods(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not with the plugin: a container may start again before another plugin runs."""
    monkeypatch.setattr(cdi.Specs.prune, "__defaults__", (0.0,))
    node.start()
    one = node.kubelet.admit("one", 2).cdi_devices[0].name
    until(lambda: list(node.specs()) == [one])
    node.kubelet.admit("same", 2)
    two = node.kubelet.admit("two", 3).cdi_devices[0].name
    assert set(node.specs()) == {one, two}
    del node.kubelet.pods["one"]
    node.stop()
    assert set(node.specs()) == {one, two}
    (path,) = node.places.libraries.glob("gate-*")
    older = path.with_name("gate-older")
    path.rename(older)
    for file in node.places.cdi.iterdir():
        file.write_text(file.read_text().replace(path.name, older.name))
    node.start()
    until(lambda: all(each["mounts"][0]["hostPath"] == str(path) for each in node.specs().values()))
    del node.kubelet.pods["same"]
    until(lambda: set(node.specs()) == {two})
    # A container that runs still has the older one.
    assert sorted(node.places.libraries.iterdir()) == sorted((older, path))
    del node.kubelet.pods["two"]
    until(lambda: node.specs() == {})
    until(lambda: [each.name for each in node.places.libraries.iterdir()] == [path.name])


def test_files_of_pods_stay_when_the_unit_is_another_one(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pods outlive the plugin that counted in MiB: their containers may start again."""
    monkeypatch.setattr(cdi.Specs.prune, "__defaults__", (0.0,))
    node.start(unit=64)
    kept = node.kubelet.admit("old", 4).cdi_devices[0].name
    gone = node.kubelet.admit("gone", 2).cdi_devices[0].name
    node.stop()
    assert set(node.specs()) == {kept, gone}
    del node.kubelet.pods["gone"]
    node.kubelet.registered.clear()
    node.start(unit=128)
    until(lambda: list(node.specs()) == [kept])
    node.stop()
    assert list(node.specs()) == [kept]


def test_what_a_killed_plugin_was_writing_is_removed(tmp_path: Path) -> None:
    half = tmp_path / f".{cdi.PREFIX}abc"
    half.touch()
    other = tmp_path / "nvidia.yaml"
    other.touch()
    assert cdi.Specs(tmp_path).prune(lambda name: False) == [] and half.exists()
    assert cdi.Specs(tmp_path).prune(lambda name: False, 0.0) == []
    assert list(tmp_path.iterdir()) == [other]
    gate = libraries.installed(tmp_path / "lib")
    (tmp_path / "lib" / ".gate-abc").mkdir()
    libraries.prune(tmp_path / "lib", gate)
    assert list((tmp_path / "lib").iterdir()) == [gate]


def test_young_file_stays_for_a_pod_that_is_not_listed_yet(tmp_path: Path) -> None:
    specs = cdi.Specs(tmp_path)
    specs.write("a-1mib", cdi.Edits({"A": "1"}, {}))
    assert specs.prune(lambda name: False) == []
    assert specs.prune(lambda name: name == "a-1mib", 0.0) == []
    assert specs.prune(lambda name: False, 0.0) == ["a-1mib"] and list(tmp_path.iterdir()) == []


# Cards and the command


def test_cards_are_asked_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VRAMKIT_DRIVER", "sim")
    monkeypatch.setenv("VRAMKIT_SIM", "devices=2,capacity=1GiB")
    found = Probe()()
    assert [total for _, total in found] == [1 << 30] * 2 and found[0][0] != found[1][0]
    monkeypatch.setenv("VRAMKIT_SIM", "devices=none")
    with pytest.raises(OSError, match="devices"):
        Probe()()


def test_driver_that_hangs_is_waited_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process in a call of a driver whose card is lost cannot be killed; here, is not."""
    hangs = tmp_path / "python"
    hangs.write_text(f"#!/bin/sh\necho $$ >> {tmp_path}/pids\nexec sleep 100\n")
    hangs.chmod(0o755)
    probe = Probe()
    with monkeypatch.context() as broken:
        broken.setattr(sys, "executable", str(hangs))
        broken.setattr(subprocess.Popen, "kill", lambda process: None)
        broken.setattr(cluster_cards, "PROBE_SECONDS", 1.0)
        with pytest.raises(OSError, match="did not answer within 1 s"):
            probe()
        pid = int(until((tmp_path / "pids").read_text))
        try:
            with pytest.raises(OSError, match=f"process {pid} is still in a call of the driver"):
                probe()
        finally:
            os.kill(pid, signal.SIGKILL)
    assert (tmp_path / "pids").read_text().split() == [str(pid)]
    monkeypatch.setenv("VRAMKIT_DRIVER", "sim")

    def answered() -> object:
        with suppress(OSError):  # the process may not have ended yet
            return probe()
        return None

    until(answered)


def test_command_serves_until_it_is_stopped(node: Node) -> None:
    words = ["--unit=128MiB", "--nvidia=none", f"--kubelet={node.places.kubelet}"]
    words += [f"--cdi={node.places.cdi}", f"--libraries={node.places.libraries}"]
    environment = {**os.environ, "VRAMKIT_DRIVER": "sim", "VRAMKIT_SOCKET": str(node.socket)}
    environment["VRAMKIT_SIM"] = "capacity=1GiB"
    command = [sys.executable, "-m", "vramkit.cli", "cluster", "kubernetes-plugin", *words]
    plugin = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        until(lambda: node.kubelet.lists or plugin.poll() is not None)
        assert len(node.kubelet.devices()) == 8
        assert node.kubelet.resource == "vramkit.dev/vram-128mib"
    finally:
        plugin.terminate()
        _, said = plugin.communicate(timeout=30)
    assert plugin.returncode == 0, said
    assert [each.name for each in node.places.plugins.iterdir()] == ["kubelet.sock"]


@pytest.mark.parametrize("unit", ["3MiB", "2GiB", "1000000", "much"])
def test_unit_that_cannot_be_is_wrong_usage(
    unit: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["cluster", "kubernetes-plugin", "--unit", unit]) == 2
    assert "unit is" in capsys.readouterr().err
