"""deploy/kubernetes says what the code does: names, paths, arguments; and asks for no more."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from vramkit.cli.app import build_app
from vramkit.cluster.cards import MIB
from vramkit.share import paths
from vramkit.share.settings import ShareSettings, changed

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
pytest.importorskip("grpc", reason="grpcio is not installed: vramkit[kubernetes]")

from vramkit.integrations.kubernetes.agent import Places  # noqa: E402
from vramkit.integrations.kubernetes.units import Unit  # noqa: E402

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"


@pytest.fixture
def documents() -> dict[str, Any]:
    text = (FOLDER / "vramkit.yaml").read_text(encoding="utf-8")
    return {each["kind"]: each for each in yaml.safe_load_all(text)}


@pytest.fixture
def pod(documents: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = documents["DaemonSet"]["spec"]["template"]["spec"]
    return found


@pytest.fixture
def containers(pod: dict[str, Any]) -> dict[str, Any]:
    return {each["name"]: each for each in pod["containers"]}


def mounts(container: dict[str, Any], pod: dict[str, Any]) -> dict[str, tuple[str | None, bool]]:
    """By path inside: the host's path, and whether it is read-only."""
    volumes = {each["name"]: each.get("hostPath", {}).get("path") for each in pod["volumes"]}
    return {
        each["mountPath"]: (volumes[each["name"]], each.get("readOnly", False))
        for each in container["volumeMounts"]
    }


def test_selectors_and_names_agree(documents: dict[str, Any], pod: dict[str, Any]) -> None:
    spec = documents["DaemonSet"]["spec"]
    assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
    namespace = documents["Namespace"]["metadata"]["name"]
    for kind in ("DaemonSet", "ConfigMap"):
        assert documents[kind]["metadata"]["namespace"] == namespace
    used = {
        name for each in pod["containers"] for name in (m["name"] for m in each["volumeMounts"])
    }
    assert used == {each["name"] for each in pod["volumes"]}


def test_agent_has_the_least_privileges(pod: dict[str, Any]) -> None:
    assert pod["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostIPC", "serviceAccountName"} & set(pod)
    for container in pod["containers"]:
        security = container["securityContext"]
        assert not security.get("privileged")
        assert security["allowPrivilegeEscalation"] is False
        assert security["readOnlyRootFilesystem"] is True
        assert security["capabilities"] == {"drop": ["ALL"]}
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}


def test_folders_are_those_of_the_code(pod: dict[str, Any], containers: dict[str, Any]) -> None:
    places = Places(socket=paths.system_socket())
    socket = str(places.socket.parent)
    private = str(paths.private_folder(places.socket, system=True))
    plugin = mounts(containers["plugin"], pod)
    expected = {
        socket: True,
        str(places.plugins): False,
        str(places.pod_resources.parent): True,
        str(places.cdi): False,
        str(places.libraries): False,
    }
    # The same path outside and inside, as the code takes one for the other.
    assert plugin == {path: (path, read_only) for path, read_only in expected.items()}
    daemon = mounts(containers["daemon"], pod)
    assert daemon == {
        socket: (socket, False),
        private: (private, False),
        str(paths.settings_file(system=True).parent): (None, True),
    }
    for container in containers.values():
        variables = {each["name"]: each.get("value") for each in container["env"]}
        assert variables["VRAMKIT_SOCKET"] == str(paths.system_socket())


def test_commands_are_understood(containers: dict[str, Any]) -> None:
    app = build_app()
    for container in containers.values():
        command, bound, _ = app.parse_args(container["args"], exit_on_error=False)
        assert command.__name__ in ("daemon", "kubernetes_plugin")
        assert bound.arguments
    probe = containers["daemon"]["readinessProbe"]["exec"]["command"]
    assert probe[0] == "vramkit"
    app.parse_args(probe[1:], exit_on_error=False)


def test_settings_are_read(documents: dict[str, Any]) -> None:
    data = documents["ConfigMap"]["data"]
    name = paths.settings_file(system=True).name
    settings = msgspec.json.decode(data[name], type=ShareSettings)
    assert settings.oversubscription == 1.5
    (port,) = documents["DaemonSet"]["spec"]["template"]["spec"]["containers"][0]["ports"]
    annotations = documents["DaemonSet"]["spec"]["template"]["metadata"]["annotations"]
    assert port["containerPort"] == settings.metrics_port == int(annotations["prometheus.io/port"])
    changed(settings, "metrics_host", settings.metrics_host)


def test_two_pods_are_more_than_one_card_and_fit_what_it_announces(
    documents: dict[str, Any], containers: dict[str, Any]
) -> None:
    (argument,) = (each for each in containers["plugin"]["args"] if each.startswith("--unit="))
    unit = Unit(int(argument.removeprefix("--unit=").removesuffix("MiB")))
    text = (FOLDER / "two-pods.yaml").read_text(encoding="utf-8")
    pods = [each for each in yaml.safe_load_all(text) if each["kind"] == "Pod"]
    limits = [each["spec"]["containers"][0]["resources"]["limits"] for each in pods]
    (asked,) = {each[unit.resource] for each in limits}
    budget = (80 << 10) * MIB - (2 << 30)
    settings = msgspec.json.decode(documents["ConfigMap"]["data"]["share.json"], type=ShareSettings)
    nbytes = asked * unit.mib * MIB
    assert len(pods) == 2 and nbytes <= budget < 2 * nbytes <= budget * settings.oversubscription
    assert nbytes == 56 << 30 and "56 GiB each" in text


def test_image_is_built_from_what_is_there() -> None:
    text = (FOLDER / "Dockerfile").read_text(encoding="utf-8")
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    (extra,) = re.findall(r"\.whl\)\[(\w+)\]", text)
    assert extra in project["optional-dependencies"]
    assert f"vramkit:{project['version']}" in text
    manifest = (FOLDER / "vramkit.yaml").read_text(encoding="utf-8")
    assert set(re.findall(r"image: (\S+)", manifest)) == {f"vramkit:{project['version']}"}
