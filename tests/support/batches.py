"""The batches of a stream, also where Spark calls ``foreachBatch`` in a process of its own."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame


def collect_into(directory: Path, *columns: str) -> Callable[[DataFrame, int], None]:
    """Return a function for ``foreachBatch`` that writes the rows of each batch to a file."""
    directory.mkdir(exist_ok=True)
    target = str(directory)

    def collect(batch: DataFrame, number: int) -> None:
        rows = [list(row) for row in batch.select(*columns).collect()]
        Path(target, f"{number:09}.json").write_text(json.dumps(rows), "utf-8")

    return collect


def take_batches(directory: Path) -> list[list[tuple[Any, ...]]]:
    """Return the rows of each batch since the last call."""
    batches = []
    for path in sorted(directory.iterdir()):
        batches.append([tuple(row) for row in json.loads(path.read_text("utf-8"))])
        path.unlink()
    return batches
