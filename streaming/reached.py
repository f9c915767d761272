"""How far a sink has come by other ways than its query's batches, told to whoever plans these.

Planning happens in a process of Spark's. It looks at a small file in the query's checkpoint; where
that is missing or old, what is done already is planned once more, and the sink drops it.
"""

from __future__ import annotations

import os
from pathlib import Path

REACHED_FILE = "reached"


def tell_reached(path: Path, offset: int) -> None:
    """Say that the log has been applied up to an offset. Raises OSError."""
    new = path.with_suffix(".new")
    new.write_text(str(offset))
    os.replace(new, path)


def reached(path: Path) -> int:
    """Return the offset told last, -1 if none was."""
    try:
        return int(path.read_text())
    except FileNotFoundError:
        return -1
