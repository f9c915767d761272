"""The systemd units and the Kubernetes manifest."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from reput.cli import run
from tests.support.ops import OPS

UNITS = sorted((OPS / "systemd").glob("*.service"))
MANIFESTS = sorted((OPS / "kubernetes").glob("*.yaml"))
DOCUMENT = OPS.parent / "docs" / "operations.md"
KUBERNETES = ("1.31", kubernetes_validate.latest_version().rpartition(".")[0])
SYSTEMD = shutil.which("systemd-analyze")


def documents() -> list[dict[str, Any]]:
    return [d for path in MANIFESTS for d in yaml.safe_load_all(path.read_text("utf-8"))]


def containers() -> list[dict[str, Any]]:
    return list(one("StatefulSet")["spec"]["template"]["spec"]["containers"])


def one(kind: str) -> dict[str, Any]:
    """Return the only object of a kind."""
    (found,) = (d for d in documents() if d["kind"] == kind)
    return found


def own_services() -> dict[str, dict[str, Any]]:
    """Return the services of docker-compose.yml that run this program."""
    services = yaml.safe_load((OPS.parent / "docker-compose.yml").read_text("utf-8"))["services"]
    return {name: s for name, s in services.items() if "build" in s}


def commands() -> list[list[str]]:
    """Return the arguments of each reput command in ops/."""
    found = [container["args"] for container in containers()]
    found += [service["command"] for service in own_services().values()]
    for unit in UNITS:
        text = unit.read_text("utf-8").replace("\\\n", " ")
        (start,) = re.findall(r"^ExecStart=\S+/reput (.*)$", text, re.MULTILINE)
        found.append(start.split())
    return found


@pytest.mark.skipif(SYSTEMD is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_accepts_a_unit_and_calls_it_hardened(unit: Path, tmp_path: Path) -> None:
    program = tmp_path / "reput"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    text = unit.read_text("utf-8")
    stand_in = tmp_path / unit.name
    text = text.replace("/opt/reput/bin/reput", str(program))
    stand_in.write_text(re.sub("(User|Group)=reput", r"\1=root", text))
    assert SYSTEMD is not None
    verified = subprocess.run(
        [SYSTEMD, "verify", "--man=no", stand_in], capture_output=True, text=True, check=False
    )
    assert (verified.returncode, verified.stderr) == (0, "")
    stand_in.write_text(text)
    rated = subprocess.run(
        [SYSTEMD, "security", "--offline=yes", "--threshold=25", stand_in],
        capture_output=True,
        text=True,
        check=False,
    )
    assert rated.returncode == 0, rated.stdout


def test_a_dispatch_stops_as_this_program_needs_it() -> None:
    text = (OPS / "systemd" / "reput-dispatch.service").read_text("utf-8")
    assert "\nKillMode=mixed\n" in text
    assert "\nRestartPreventExitStatus=2 3 5\n" in text


@pytest.mark.parametrize("version", sorted(set(KUBERNETES)))
def test_kubernetes_accepts_the_manifest(version: str) -> None:
    for document in documents():
        kubernetes_validate.validate(document, version, strict=True)


def test_containers_have_no_rights_and_write_only_to_their_volumes() -> None:
    pod = one("StatefulSet")["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    for container in pod["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        mounts = {m["name"]: m.get("readOnly", False) for m in container["volumeMounts"]}
        assert mounts["store"] is True
        assert mounts["output"] is (container["name"] == "serve")
        assert "livenessProbe" in container
        assert "readinessProbe" in container
    names = {volume["name"] for volume in pod["volumes"]}
    assert names == {m["name"] for c in pod["containers"] for m in c["volumeMounts"]}


def test_the_services_of_compose_have_no_rights_and_are_published_for_this_machine_only() -> None:
    services = own_services()
    assert list(services) == ["dispatcher", "console", "mirror"]
    for name, service in services.items():
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["read_only"] is True
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
        writable = [v for v in service["volumes"] if not v.endswith(":ro")]
        assert writable == (["reput-output:/output"] if name == "dispatcher" else [])
    (check,) = (a for a in services["console"]["healthcheck"]["test"] if "urlopen" in a)
    compile(check, "healthcheck", "exec")
    assert "127.0.0.1:8080/healthz" in check


def test_probes_and_services_name_ports_that_exist() -> None:
    ports = {p["name"]: p["containerPort"] for c in containers() for p in c["ports"]}
    service = one("Service")["spec"]["ports"]
    assert ports == {p["targetPort"]: p["port"] for p in service}
    dispatch, serve = containers()
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert dispatch[probe]["httpGet"] == {"path": "/healthz", "port": "metrics"}
    for probe in ("livenessProbe", "readinessProbe"):  # not /healthz: a dispatch may be stuck
        assert serve[probe]["httpGet"] == {"path": "/livez", "port": "http"}
    assert f"--metrics-port={ports['metrics']}" in dispatch["args"]
    for rule in one("NetworkPolicy")["spec"]["ingress"]:
        assert {p["port"] for p in rule["ports"]} <= ports.keys()


def test_limits_are_those_of_the_documentation_and_above_what_was_measured() -> None:
    rows = re.findall(
        r"^\| `(dispatch|serve)` \| (.+) \|$", DOCUMENT.read_text("utf-8"), re.MULTILINE
    )
    assert [name for name, _ in rows] == ["dispatch", "serve"]
    for (name, row), container in zip(rows, containers(), strict=True):
        cells = [int(cell.replace(",", "")) for cell in row.split("|")]
        memory, memory_max, tasks, tasks_max, files, files_max = cells
        assert memory * 1.5 < memory_max
        assert tasks * 1.5 < tasks_max
        assert files * 1.5 < files_max
        text = (OPS / "systemd" / f"reput-{name}.service").read_text("utf-8")
        settings = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
        assert settings["MemoryMax"] == f"{memory_max // 1024}G"
        assert settings["TasksMax"] == str(tasks_max)
        assert settings["LimitNOFILE"] == str(files_max)
        resources = container["resources"]
        assert resources["limits"] == {"memory": f"{memory_max // 1024}Gi"}
        assert memory < _mebibytes(resources["requests"]["memory"]) < memory_max


def _mebibytes(quantity: str) -> int:
    return int(quantity[:-2]) * {"Mi": 1, "Gi": 1024}[quantity[-2:]]


def test_only_chosen_pods_may_connect() -> None:
    senders = [peer for rule in one("NetworkPolicy")["spec"]["ingress"] for peer in rule["from"]]
    assert senders
    for sender in senders:
        assert sender["namespaceSelector"]["matchLabels"]
        assert sender["podSelector"]["matchLabels"]


def test_the_console_is_reached_from_outside_with_tls_and_by_a_name_that_it_knows() -> None:
    ingress = one("Ingress")["spec"]
    hosts = [rule["host"] for rule in ingress["rules"]]
    assert hosts == [host for tls in ingress["tls"] for host in tls["hosts"]]
    assert all(f"--allowed-host={host}" in containers()[1]["args"] for host in hosts)


def test_images_are_pinned_or_can_be() -> None:
    assert all("@sha256:" in container["image"] for container in containers())
    text = (OPS.parent / "docker-compose.yml").read_text("utf-8")
    others = {s["image"] for s in yaml.safe_load(text)["services"].values() if "build" not in s}
    assert {image.partition(":-")[0] for image in others} == {"${ROCKETMQ_IMAGE", "${KAFKA_IMAGE"}


@pytest.mark.parametrize("number", range(len(commands())))
def test_the_options_of_every_command_exist(
    number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    # With files that do not exist: the options are parsed, then one of these is refused.
    given = [
        "/none" if a in {"/store", "/data/rocketmq/store"} else a.replace("$(POD_IP)", "10.0.0.1")
        for a in commands()[number]
    ]
    if given[0] == "dispatch":
        given.append("--metrics-port=0")  # the last one counts; the other may be in use
    assert run(given) in {2, 6}
    errors = capsys.readouterr().err
    assert any(p in errors for p in ("/none", "/conf/broker.conf", "/run/secrets/reput/token"))
