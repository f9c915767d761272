"""The wheel: its two packages, every file of the folders, the same from a source distribution."""

import subprocess
import tarfile
import zipfile
from pathlib import Path

from tests.support.environments import (
    FOLDERS,
    OWN,
    REPOSITORY,
    Environment,
    build_sdist,
    build_wheel,
    site_packages,
)

PACKAGES = (*FOLDERS, "reput", "pyspark_reput")
IMPORTS = """
import importlib, pkgutil, sys
import pyspark_reput, reput

for package in (reput, pyspark_reput):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
        print(module.name)
assert not {"store", "checkpoints", "streaming"} & sys.modules.keys()
"""
OWN_PACKAGES = """
import checkpoints, store, streaming
assert all(p.IS_A_PACKAGE_OF_THE_USER for p in (checkpoints, store, streaming))
import reput
assert reput.MessageStore.__module__.startswith("reput.")
"""


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        assert len(names) == len(set(names))
        return {name: archive.read(name) for name in names}


def place(path: str) -> str:
    """Return where the wheel has a file of the checkout."""
    return f"reput/{path}" if path.split("/", maxsplit=1)[0] in FOLDERS else path


def test_the_wheel_has_two_packages_with_every_file_of_the_folders(wheel: Path) -> None:
    packed = contents(wheel)
    folders = {name.split("/")[0] for name in packed if ".dist-info/" not in name}
    assert folders == {"reput", "pyspark_reput"}
    assert "reput/console/templates/base.html" in packed
    assert any(name.startswith("reput/console/static/") for name in packed)
    command = ["git", "ls-files", *PACKAGES]
    listed = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    for path in listed.stdout.splitlines():  # none in a source distribution
        source = (REPOSITORY / path).read_bytes()
        if path.endswith(".py"):
            assert packed[place(path)].count(b"\n") == source.count(b"\n")
        else:
            assert packed[place(path)] == source


def test_a_source_distribution_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    sdist = build_sdist(REPOSITORY, tmp_path)
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (project,) = (path for path in tmp_path.iterdir() if path.is_dir())
    assert contents(build_wheel(project, tmp_path)) == contents(wheel)


def test_every_module_can_be_imported_and_no_name_but_the_two_is_taken(
    wheel: Path, installed: Environment
) -> None:
    imported = set(installed.run_python(IMPORTS).split())
    modules = {name for name in contents(wheel) if name.endswith(".py")}
    names = {
        name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in modules
    }
    assert imported == names - {"reput", "pyspark_reput"}
    assert len(imported) > 250


def test_packages_named_like_the_folders_stay_the_users(installed: Environment) -> None:
    installed.run_python(OWN_PACKAGES)
    site = site_packages(installed.python.parents[1])
    for name in FOLDERS:
        assert [path.name for path in (site / name).glob("*.*")] == ["__init__.py"]
        assert (site / name / "__init__.py").read_text() == OWN
