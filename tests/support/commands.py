"""The command line as a process of its own."""

import subprocess
import sys

REPUT = [sys.executable, "-c", "from streaming.cli import main; main()"]
_SECONDS = 240


def reput(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command; return its exit code and what it printed."""
    command = [*REPUT, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
