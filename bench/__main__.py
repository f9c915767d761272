"""Measure scans, dispatch and reads on logs that are written here; print a table (``make bench``).

Figures are messages (or keys) a second. They depend on the machine: compare them with a run of
another commit beside this one, never with a number from elsewhere. With ``--broker-lib`` the reads
are measured on RocketMQ's own store too; its figures are shown beside ours. The mirror is measured
beside kafka-python's own ``send``, to a Kafka that is started for it or named.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench import kernels, latency, mirror, reads, recovery, streaming_query
from bench.broker import Broker
from bench.log import write_bench_log

BENCHES: dict[str, Callable[[Path, Path], dict[str, float]]] = {
    "kernels": kernels.run,
    "streaming": streaming_query.run,
    "latency": latency.run,
    "reads": reads.run,
    "recovery": recovery.run,
    "mirror": mirror.run,
}
NO_BROKER = "reads by RocketMQ's own store: not run; --broker-lib names the lib folder of a release"


def main() -> None:
    """Run the benchmarks named on the command line, all by default."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"which of {', '.join(BENCHES)} (default: all)")
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--directory", type=Path, help="where to work (default: temporary)")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    parser.add_argument(
        "--broker-lib", type=Path, help="lib/ of a RocketMQ 5 release: its reads are measured too"
    )
    parser.add_argument(
        "--kafka-bootstrap", default="", help="H:P of a Kafka to mirror to, in place of its own"
    )
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(BENCHES)
    if unknown:
        parser.error(f"unknown benchmark {', '.join(sorted(unknown))}")
    broker = None
    if arguments.broker_lib is not None:
        try:
            broker = Broker.find(arguments.broker_lib)
        except ValueError as e:
            parser.error(f"--broker-lib: {e}")
    benches = BENCHES | {
        "reads": partial(reads.run, broker=broker),
        "mirror": partial(mirror.run, bootstrap=arguments.kafka_bootstrap),
    }
    directory = arguments.directory or Path(tempfile.mkdtemp(prefix="reput-bench-"))
    figures: dict[str, float] = {}
    try:
        store = directory / "store"
        figures |= write_bench_log(store, arguments.messages)
        for name in arguments.names or benches:
            figures |= benches[name](store, directory / name)
    finally:
        if arguments.directory is None:
            shutil.rmtree(directory)
    _print_table(figures, broker)
    if broker is not None:
        figures |= {f"RocketMQ {broker.version}: {n}": v for n, v in broker.figures.items()}
    elif "reads" in (arguments.names or benches):
        print(NO_BROKER)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")


def _print_table(figures: dict[str, float], broker: Broker | None) -> None:
    """Print a line a figure; where a broker has it too, that one's and ours by it."""
    if broker is not None and broker.figures:
        head = f"RocketMQ {broker.version}"
        print(f"{'':58} {'here':>14} {head:>16} {'here / that':>11}")
    for name, value in figures.items():
        line = f"{name:58} {_number(value):>14}"
        if broker is not None and name in broker.figures:
            theirs = broker.figures[name]
            line += f" {_number(theirs):>16} {value / theirs:>11.3f}"
        print(line)


def _number(value: float) -> str:
    return f"{value:,.2f}" if value >= 1 else f"{value:,.4f}"


if __name__ == "__main__":
    main()
