"""The systemd units and the Kubernetes manifest."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from streaming.cli import run
from tests.support.ops import OPS

UNITS = sorted((OPS / "systemd").glob("*.service"))
MANIFEST = OPS / "kubernetes" / "reput.yaml"
KUBERNETES = ("1.31", kubernetes_validate.latest_version().rpartition(".")[0])
SYSTEMD = shutil.which("systemd-analyze")


def documents() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(MANIFEST.read_text("utf-8")))


def containers() -> list[dict[str, Any]]:
    (workload,) = (d for d in documents() if d["kind"] == "StatefulSet")
    return list(workload["spec"]["template"]["spec"]["containers"])


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
    (workload,) = (d for d in documents() if d["kind"] == "StatefulSet")
    pod = workload["spec"]["template"]["spec"]
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
    (service,) = (d for d in documents() if d["kind"] == "Service")
    assert ports == {p["targetPort"]: p["port"] for p in service["spec"]["ports"]}
    dispatch = containers()[0]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert dispatch[probe]["httpGet"] == {"path": "/healthz", "port": "metrics"}
    assert f"--metrics-port={ports['metrics']}" in dispatch["args"]


@pytest.mark.parametrize("number", range(len(commands())))
def test_the_options_of_every_command_exist(
    number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    # With a store that does not exist: the options are parsed, then the store is refused.
    given = [
        "/none" if a in {"/store", "/data/rocketmq/store"} else a.replace("$(POD_IP)", "10.0.0.1")
        for a in commands()[number]
    ]
    if given[0] == "dispatch":
        given.append("--metrics-port=0")  # the last one counts; the other may be in use
    assert run(given) in {2, 6}
    errors = capsys.readouterr().err
    assert any(p in errors for p in ("/none", "/conf/broker.conf", "/run/secrets/reput/token"))
