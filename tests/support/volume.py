"""File systems of memory, for tests of full ones."""

import subprocess
from pathlib import Path

import pytest


def mount_tmpfs(path: Path, size: int) -> None:
    """Mount one of so many bytes; where that is not permitted the test says so and is skipped."""
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "reput-test", str(path)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"NOT TESTED: a full volume; mounting a tmpfs failed: {done.stderr.strip()}")
