"""The command line in a separate process."""

import subprocess
import sys

REPUT = [sys.executable, "-m", "reput"]
_SECONDS = 240


def reput(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command; return its exit code and output."""
    command = [*REPUT, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
