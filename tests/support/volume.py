"""In-memory file systems, for tests of a full volume."""

import subprocess
from pathlib import Path

import pytest


def mount_tmpfs(path: Path, size: int) -> None:
    """Mount a tmpfs of `size` bytes; skip the test where mounting is not permitted."""
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "reput-test", str(path)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"NOT TESTED: a full volume; mounting a tmpfs failed: {done.stderr.strip()}")
