"""The lock files: the image's is a part of the other, and holds what the program needs."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).parents[1]


def locked(name: str) -> dict[str, str]:
    """Map the packages of a lock file to their entries, hashes included."""
    text = (REPOSITORY / name).read_text()
    entries = re.findall(r"^[a-z0-9].*(?:\n +--hash.*)+", text, re.MULTILINE)
    return {canonicalize_name(re.split("[=; ]", entry)[0]): entry for entry in entries}


def names(requirements: list[object]) -> set[str]:
    texts = [requirement for requirement in requirements if isinstance(requirement, str)]
    return {canonicalize_name(Requirement(text).name) for text in texts}


def test_the_images_lock_is_a_subset_of_the_full_lock() -> None:
    whole, part = locked("requirements.lock"), locked("requirements-run.lock")
    assert {name: whole.get(name) for name in part} == part
    assert len(part) > 20


def test_the_images_lock_has_the_runtime_and_build_requirements_and_no_tools() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    groups, part = project["dependency-groups"], locked("requirements-run.lock")
    needed = names(project["project"]["dependencies"]) | names(groups["build"])
    assert needed <= part.keys()
    assert not names(groups["dev"]) & part.keys()
