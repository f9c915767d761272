"""Images built without a registry: nearly empty, running the programs of this machine's /usr.

Each has the user, the folders and the owners of the image it replaces. They take a second to build.
"""

import io
import os
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.integration.compose.engine import Engine
from tests.integration.servers.rocketmq import DEFAULT_VERSION
from tools.maven import kafka_jars, rocketmq_jars, tool

HERE = Path(__file__).parent
REPOSITORY = HERE.resolve().parents[2]
ROCKETMQ, KAFKA, DISPATCHER = "reput-local-rocketmq", "reput-local-kafka", "reput-local-dispatcher"
ROCKETMQ_HOME = f"/home/rocketmq/rocketmq-{DEFAULT_VERSION}"
USERS = {"root": 0, "rocketmq": 3000, "appuser": 1000, "reput": 10001}
HOMES = {"root": "/root", "rocketmq": "/home/rocketmq", "appuser": "/home/appuser", "reput": "/tmp"}
# Folders and their owners. /store is not among them: of the real images only this project's has it.
FOLDERS = {
    "dev": 0, "etc": 0, "proc": 0, "root": 0, "run": 0, "sys": 0, "usr": 0, "var": 0, "mnt": 0,
    "sbin": 0,  # a real folder, into which the engine puts its init
    "home/rocketmq": 3000, ROCKETMQ_HOME[1:]: 3000, f"{ROCKETMQ_HOME[1:]}/lib": 3000,
    "home/appuser": 1000, "opt/kafka/libs": 1000, "opt/kafka/config": 1000,
    "mnt/shared/config": 1000, "var/lib/kafka/data": 1000, "etc/kafka/docker": 1000,
    "output": 10001,
}  # fmt: skip
# Files that this machine's programs need in /etc.
FROM_HOST = ("nsswitch.conf", "ld.so.cache", "java-17-openjdk", "java-21-openjdk", "localtime")


@dataclass(frozen=True)
class LocalImages:
    """The settings that docker-compose.local.yml takes from the environment."""

    java: Path
    python: Path
    dispatcher: str

    @property
    def compose_files(self) -> list[Path]:
        """The compose files in order."""
        files = [REPOSITORY / "docker-compose.yml", HERE / "docker-compose.local.yml"]
        if self.dispatcher == DISPATCHER:
            files.append(HERE / "docker-compose.checkout.yml")
        return files

    @property
    def environment(self) -> dict[str, str]:
        """The variables of docker-compose.local.yml."""
        return {
            "LOCAL_JAVA": str(self.java),
            "LOCAL_PYTHON": str(self.python),
            "LOCAL_VENV": sys.prefix,
            "LOCAL_REPOSITORY": str(REPOSITORY),
            "LOCAL_ROCKETMQ": str(rocketmq_jars(DEFAULT_VERSION)),
            "LOCAL_KAFKA": str(kafka_jars("4.1.1")),
            "LOCAL_DISPATCHER": self.dispatcher,
        }


def make_local_images(engine: Engine, dispatcher: str = DISPATCHER) -> LocalImages:
    """Import the three images; `dispatcher` may name another image for the dispatcher."""
    java = Path(tool("java")).resolve().parents[1]
    python = Path(sys.base_prefix)
    # The system's Python is part of the /usr mount, so any folder in /usr will do.
    python = Path("/usr/lib") if python == Path("/usr") else python
    archive = _archive()
    path = f"{java}/bin:/usr/bin:/bin"
    images = {
        ROCKETMQ: ["USER 3000:3000", f"ENV ROCKETMQ_HOME={ROCKETMQ_HOME}", f"ENV PATH={path}"],
        KAFKA: ["USER 1000:1000", f"ENV PATH={path}"],
        DISPATCHER: [
            "USER 10001:10001",
            f"ENV PATH={sys.prefix}/bin:{path}",
            "WORKDIR /tmp",
            'ENTRYPOINT ["reput"]',
        ],
    }
    for name, changes in images.items():
        options = [text for change in changes for text in ("--change", change)]
        engine.docker("import", *options, "-", name, data=archive)
    return LocalImages(java, python, dispatcher)


def remove_local_images(engine: Engine) -> None:
    """Remove the three images: the engine may keep running."""
    engine.try_docker("image", "rm", "--force", ROCKETMQ, KAFKA, DISPATCHER)


def _archive() -> bytes:
    """Return the file system of all three images as a tar."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for entry in _links():
            tar.addfile(entry)
        folders = {str(f) for path in FOLDERS for f in (Path(path), *Path(path).parents[:-1])}
        for path in sorted(folders):
            tar.addfile(_folder(path, FOLDERS.get(path, 0)))
        for path in ("tmp", "var/tmp"):
            tar.addfile(_folder(path, 0, 0o1777))
        users = (f"{n}:x:{i}:{i}::{HOMES[n]}:/bin/bash\n" for n, i in USERS.items())
        _add_file(tar, "etc/passwd", "".join(users))
        _add_file(tar, "etc/group", "".join(f"{n}:x:{i}:\n" for n, i in USERS.items()))
        # Kafka's wrapper requires a file of defaults; all settings come from the environment.
        _add_file(tar, "etc/kafka/docker/server.properties", "")
        for name in FROM_HOST:
            path = f"/etc/{name}"
            if os.path.exists(path):
                tar.add(path, arcname=path[1:])
    return out.getvalue()


def _links() -> Iterator[tarfile.TarInfo]:
    for name in ("bin", "lib", "lib64"):
        link = tarfile.TarInfo(name)
        link.type, link.linkname = tarfile.SYMTYPE, f"usr/{name}"
        yield link


def _folder(path: str, owner: int, mode: int = 0o755) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(path)
    entry.type, entry.mode, entry.uid, entry.gid = tarfile.DIRTYPE, mode, owner, owner
    return entry


def _add_file(tar: tarfile.TarFile, path: str, text: str) -> None:
    entry = tarfile.TarInfo(path)
    entry.size = len(text.encode())
    tar.addfile(entry, io.BytesIO(text.encode()))
