"""``reput`` as a user sees it: its text on a terminal of a given width."""

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Iterable, Sequence

STYLE = re.compile(r"\x1b\[[0-9;]*m")
_END = "<end of a command>"
_PROGRAM = f"""
import json, sys
from reput.cli import main
for arguments in json.loads(sys.argv[1]):
    sys.argv[1:] = arguments
    try:
        main()
    except SystemExit:
        print({_END!r})
"""


def on_terminal(commands: Iterable[Sequence[str | os.PathLike[str]]], columns: int) -> list[str]:
    """Run command lines on a terminal; return the output of each, without colours."""
    lines = json.dumps([list(map(os.fspath, command)) for command in commands])
    text = STYLE.sub("", program_on_terminal(_PROGRAM, columns, lines))
    text = "".join(f"{line.rstrip()}\n" for line in text.split("\n")[:-1])
    return text.split(f"{_END}\n")[:-1]


def program_on_terminal(program: str, columns: int, *arguments: str) -> str:
    """Run a Python program on a terminal; return its output, including escape sequences."""
    output, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", 50, columns, 0, 0))
    known = {k: v for k, v in os.environ.items() if k not in {"COLUMNS", "LINES"}}
    with subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env=known | {"TERM": "xterm", "TZ": "CET-1CEST,M3.5.0,M10.5.0/3"},
    ) as process:
        os.close(terminal)
        written = b""
        while piece := _read(output):
            written += piece
        process.wait()
    os.close(output)
    return written.decode().replace("\r\n", "\n")


def _read(output: int) -> bytes:
    try:
        return os.read(output, 1 << 16)
    except OSError:  # Linux: the process has closed the terminal
        return b""
