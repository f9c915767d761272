"""Builds the image of the repository's Dockerfile, and its base image where none can be pulled.

The local base is a Debian 12 from mmdebstrap, with this machine's apt and pip settings, so that the
Dockerfile is built unchanged.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.integration.compose.engine import Engine, EngineError
from tests.integration.compose.images import REPOSITORY

BUILT, BASE = "reput-built-dispatcher", "reput-local-debian"
BUILD_SECONDS = 1800.0
PIP_SETTINGS = ("index-url", "extra-index-url", "trusted-host", "proxy", "timeout")


def build_image(engine: Engine) -> str:
    """Build the Dockerfile and return the image's name."""
    arguments = ["--tag", BUILT, str(REPOSITORY)]
    if not _can_pull(engine):
        if engine.try_docker("image", "inspect", BASE).returncode != 0:
            _make_base(engine)
        arguments = ["--build-arg", f"BASE_IMAGE={BASE}", *arguments]
    engine.docker("build", *arguments, seconds=BUILD_SECONDS)
    return BUILT


def _can_pull(engine: Engine) -> bool:
    lines = (REPOSITORY / "Dockerfile").read_text().splitlines()
    (base,) = (line.split("=")[1] for line in lines if line.startswith("ARG BASE_IMAGE="))
    return engine.try_docker("pull", base).returncode == 0


def _make_base(engine: Engine) -> None:
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / "debian.tar"
        command = [
            "mmdebstrap", "--variant=minbase", "--quiet", *_apt_options(),
            "--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-exclude=/usr/share/locale/*",
            "bookworm", str(archive), *_mirror(),
        ]  # fmt: skip
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError as e:
            raise EngineError("cannot pull a base image; mmdebstrap is not installed") from e
        if done.returncode != 0:  # otherwise an empty image would be imported
            raise EngineError(f"mmdebstrap: exit {done.returncode}\n{done.stderr[-4000:]}")
        engine.docker("import", str(archive), f"{BASE}-bare")
        archive.unlink()
        _write_settings(Path(folder))
        engine.docker("build", "--tag", BASE, folder)


def _write_settings(folder: Path) -> None:
    """Write the files that the base image gets in addition to the packages."""
    settings = dict(_pip_settings())
    lines = ["FROM " + BASE + "-bare"]
    if "cert" in settings:
        (folder / "certificates.pem").write_bytes(Path(settings["cert"]).read_bytes())
        settings["cert"] = "/etc/pip-certificates.pem"
        lines.append(f"COPY certificates.pem {settings['cert']}")
    text = "[global]\n" + "".join(f"{name} = {value}\n" for name, value in settings.items())
    (folder / "pip.conf").write_text(text)
    (folder / "apt.conf").write_text("".join(f"{line};\n" for line in _apt_settings()))
    lines += ["COPY pip.conf /etc/pip.conf", "COPY apt.conf /etc/apt/apt.conf.d/99host"]
    (folder / "Dockerfile").write_text("\n".join(lines) + "\n")


def _pip_settings() -> list[tuple[str, str]]:
    """Return this machine's pip settings for reaching its index."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = []
    for line in output.splitlines():
        name, _, value = line.partition("=")
        short = name.rpartition(".")[2]
        if short in (*PIP_SETTINGS, "cert") and name.startswith(("global.", ":env:.")):
            found.append((short, value.strip("'\"")))
    return found


def _apt_settings() -> list[str]:
    """Return this machine's apt date checks, and settings that keep no deb files."""
    dump = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=True).stdout
    lines = [line.rstrip(";") for line in dump.splitlines()]
    dates = [line for line in lines if line.startswith("Acquire::Check-")]
    return [*dates, 'APT::Keep-Downloaded-Packages "false"', 'Dir::Cache::pkgcache ""']


def _apt_options() -> list[str]:
    dates = [line for line in _apt_settings() if line.startswith("Acquire::Check-")]
    return [f"--aptopt={line}" for line in dates]


def _mirror() -> list[str]:
    """Return this machine's first Debian package source, if its file is found."""
    for path in sorted(Path("/etc/apt/sources.list.d").glob("*.sources")):
        for line in path.read_text().splitlines():
            if line.startswith("URIs:") and "debian" in line:
                return [line.split()[1]]
    return []
