"""Measure bulk paths and reads on logs that are written here; print a table (``make bench``).

Figures are messages (or keys) a second. They depend on the machine: compare them with a run of
another commit beside this one, never with a number from elsewhere.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from bench import kernels, latency, reads, streaming_query
from bench.log import write_bench_log

BENCHES: dict[str, Callable[[Path, Path], dict[str, float]]] = {
    "kernels": kernels.run,
    "streaming": streaming_query.run,
    "latency": latency.run,
    "reads": reads.run,
}


def main() -> None:
    """Run the benchmarks named on the command line, all by default."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"which of {', '.join(BENCHES)} (default: all)")
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--directory", type=Path, help="where to work (default: temporary)")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(BENCHES)
    if unknown:
        parser.error(f"unknown benchmark {', '.join(sorted(unknown))}")
    directory = arguments.directory or Path(tempfile.mkdtemp(prefix="reput-bench-"))
    figures: dict[str, float] = {}
    try:
        store = directory / "store"
        figures |= write_bench_log(store, arguments.messages)
        for name in arguments.names or BENCHES:
            figures |= BENCHES[name](store, directory / name)
    finally:
        if arguments.directory is None:
            shutil.rmtree(directory)
    for name, value in figures.items():
        print(f"{name:58} {value:>14,.2f}" if value >= 1 else f"{name:58} {value:>14,.4f}")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
