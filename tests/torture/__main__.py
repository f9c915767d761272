"""Run the crash tests in their long form and print figures (``make torture``)."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.stress import swaps as stress_swaps
from tests.torture import cycles, enumeration, faults, live, rebuild_kills, spark_kills
from tests.torture.simulation.device import make_directory

Figures = dict[str, object]
Options = argparse.Namespace


def run_cycles(directory: Path, options: Options) -> Figures:
    """Kill and resume."""
    figures = cycles.run(directory, options.seed, options.cycles)
    return {"cycles": figures.cycles, **vars(figures)}


def run_faults(directory: Path, _options: Options) -> Figures:
    """Fail each call."""
    figures = faults.run(directory)
    return {"tried": figures.faults.total(), **vars(figures)}


def run_enumeration(directory: Path, _options: Options) -> Figures:
    """Enumerate all states."""
    figures = enumeration.run(directory)
    return {"states": figures.states, **vars(figures)}


def run_live(directory: Path, options: Options) -> Figures:
    """Kill a dispatcher beside a live writer and readers."""
    return dict(live.live(directory, options.live_seconds, options.seed))


def run_kills(directory: Path, options: Options) -> Figures:
    """Kill the real query."""
    return dict(spark_kills.spark_kills(directory, options.kills, options.seed))


def run_rebuilds(directory: Path, options: Options) -> Figures:
    """Kill rebuilds."""
    return dict(rebuild_kills.rebuild_kills(directory, options.kills, options.seed))


def run_swaps(directory: Path, options: Options) -> Figures:
    """Replace an OUTPUT beside readers and busy processes."""
    figures = stress_swaps.stress(directory, options.swap_seconds)
    assert figures.pop("wrong") == []
    return figures


PARTS: dict[str, Callable[[Path, Options], Figures]] = {
    "cycles": run_cycles,
    "faults": run_faults,
    "enumeration": run_enumeration,
    "live": run_live,
    "swaps": run_swaps,
    "kills": run_kills,
    "rebuilds": run_rebuilds,
}


def show(name: str, figures: Figures) -> None:
    """Print one figure per line; counts by kind share a line, largest first."""
    for key, value in figures.items():
        if isinstance(value, dict):
            counts = sorted(value.items(), key=lambda item: -item[1])
            value = ", ".join(f"{kind} {count:,}" for kind, count in counts)  # noqa: PLW2901
        sys.stdout.write(
            f"{name + ' ' + key:24} {value:,}\n"
            if isinstance(value, int)
            else f"{name + ' ' + key:24} {value}\n"
        )
    sys.stdout.flush()


def main() -> None:
    """Run the selected parts."""
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the cycles")
    parser.add_argument("--cycles", type=int, default=10_000)
    parser.add_argument("--live-seconds", type=float, default=600)
    parser.add_argument("--swap-seconds", type=float, default=600)
    parser.add_argument("--kills", type=int, default=100, help="of the real query, and of rebuilds")
    parser.add_argument("--part", choices=PARTS, action="append", help="default: all")
    parser.add_argument("--directory", type=Path, help="working directory (default: in memory)")
    options = parser.parse_args()
    sys.stdout.write(f"{'seed':24} {options.seed}\n")
    directory = make_directory(options.directory)
    for name in options.part or PARTS:
        began = time.monotonic()
        figures = PARTS[name](directory / name, options)
        show(name, figures | {"seconds": round(time.monotonic() - began)})
        shutil.rmtree(directory / name)
    directory.rmdir()  # after a failure it is kept, and the error names it


if __name__ == "__main__":
    main()
