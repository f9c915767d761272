"""How far a sink has come by other ways than its query's batches, told to whoever plans these.

Planning happens in a process of Spark's. It looks at a small file in the query's checkpoint; where
that is missing or old, what is done already is planned once more, and the sink drops it.
"""

from __future__ import annotations

import os
from pathlib import Path

from store.errors import StoreIOError

REACHED_FILE = "reached"


def tell_reached(path: Path, offset: int) -> None:
    """Say that the log has been applied up to an offset. Raises StoreIOError."""
    new = path.with_suffix(".new")
    try:
        new.write_text(str(offset))
        os.replace(new, path)
    except OSError as e:
        raise StoreIOError("write", path, e) from e


def reached(path: Path) -> int:
    """Return the offset told last, -1 if none was. Raises StoreIOError."""
    try:
        return int(path.read_text())
    except FileNotFoundError:
        return -1
    except OSError as e:
        raise StoreIOError("read", path, e) from e
