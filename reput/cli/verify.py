"""``reput verify``: derive queues and index again and compare; a JVM only with --master."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reput.cli import EXIT_NO
from reput.cli.lines import counted, print_json, print_line, say
from reput.cli.options import (
    BrokerOptions,
    Json,
    Output,
    ScanOptions,
    Store,
    describe_settings,
    scan_feed,
)
from reput.cli.show import progress_bar
from store.errors import ConfigError

if TYPE_CHECKING:
    from store.compare.findings import Difference
    from store.compare.store import Counts
    from streaming.queries.verify import Verification

_SHOWN_MAX = 20
_COUNTED = {
    "older_units": "queue units of messages below the log's minimum",
    "older_entries": "index entries of messages below the log's minimum",
    "stale_units": "stale queue units beyond the end of their queue (left by a crash, or newer "
    "than this comparison)",
    "stale_entries": "stale index entries of records that the log lost, or beyond its end",
    "doubled_entries": "duplicate index entries (a broker's restart indexes its last record again)",
    "orphan_ext_units": "ext units that no compared queue unit refers to",
    "dropped_units": "messages in no queue, by a broker's own rules: older ones took their "
    "positions",
    "displaced_queues": "queues whose positions differ from their queue offsets because of gaps "
    "below the log's minimum",
}


@dataclass(frozen=True, slots=True)
class VerifyOptions(ScanOptions):
    """What scans the log, and whether the result is kept."""

    record: Annotated[
        bool,
        typer.Option(
            "--record",
            help="Keep the result in OUTPUT, for reput serve to show; a dispatch may run.",
        ),
    ] = False


def verify(
    store: Store,
    output: Output = None,
    *,
    options: VerifyOptions,
    broker: BrokerOptions,
    as_json: Json = False,
) -> None:
    """Compare queues and index with their commit log.

    Derives both again from the log, compares byte for byte, and names the first unit or entry of
    each file that differs. Writes nothing, except with --record. Exits with 1 if anything differs.
    What reput built is compared up to its progress, a broker's files up to the log's end. Older,
    stale and duplicate units and entries of a broker are counted.
    """
    from checkpoints.recovery.reports import record_verification
    from store.output.progress import read_progress_view
    from store.output.resolve_config import config_to_compare
    from streaming.queries.verify import verify

    compared = output if output is not None else store
    settings = options.spark_settings()
    config = config_to_compare(store, compared, broker.broker_conf, broker.broker_version)
    if options.record and read_progress_view(compared) is None:
        raise ConfigError(f"--record: {compared} was not made by a dispatch")
    if not as_json:
        say(describe_settings(config))
    with (
        scan_feed("reput verify", settings, store, config) as feed,
        progress_bar("verifying", as_json=as_json) as report,
    ):
        result = verify(store, compared, config, report, feed)
    if options.record:
        span = result.begin_offset, result.end_offset
        record_verification(compared, span, result.messages, result.differences)
    if as_json:
        print_json(result_json(result))
    else:
        for line in summary(result):
            print_line(line)
    if not result.is_equal:
        raise typer.Exit(EXIT_NO)


def summary(result: Verification) -> Iterator[str]:
    """Yield a result as lines of text."""
    counts, differences = result.counts, result.differences
    compared = (
        f"{counted(result.messages, 'message')}, offsets {result.begin_offset:,} to "
        f"{result.end_offset:,}: {counts.units:,} queue units, {counts.entries:,} index entries"
    )
    if result.is_equal:
        yield f"equal: {result.output} matches its log ({compared})"
    else:
        files = counted(len({d.path for d in differences}), "file")
        yield f"differs: {files} of {result.output}, compared with the log ({compared})"
    for difference in differences[:_SHOWN_MAX]:
        yield f"  {difference}"
    if len(differences) > _SHOWN_MAX:
        yield f"  … and {len(differences) - _SHOWN_MAX:,} more (--json lists all)"
    yield from _counted(counts)
    for (topic, queue_id), drops in sorted(result.drops.items()):
        if drops.repeated:
            yield (
                f"a broker's own rules dropped {counted(drops.repeated, 'message')} of "
                f"{topic}/{queue_id}: queue offset below the end of the queue"
            )
        if drops.gaps:
            yield (
                f"a broker's own rules misplaced {counted(drops.gaps, 'message')} of "
                f"{topic}/{queue_id}: lower in the queue than the queue offset says"
            )
    backlog = result.log_end_offset - result.end_offset
    if backlog:
        yield f"not compared: {backlog:,} bytes of log after offset {result.end_offset:,}"
    for lost in result.lost:
        yield (
            f"not compared: offsets {lost.begin:,} to {lost.end:,} of the log, which the dispatch "
            f"skipped ({lost.reason})"
        )


def result_json(result: Verification) -> dict[str, Any]:
    """Return a result as JSON values."""
    return {
        "equal": result.is_equal,
        "store": str(result.store),
        "output": str(result.output),
        "made_by": "reput" if result.is_dispatched else "broker",
        "begin_offset": result.begin_offset,
        "end_offset": result.end_offset,
        "log_end_offset": result.log_end_offset,
        "messages": result.messages,
        "counts": asdict(result.counts),
        "differences": [_difference_json(d) for d in result.differences],
        "drops": [
            {"topic": topic, "queue_id": queue_id, **asdict(drops)}
            for (topic, queue_id), drops in sorted(result.drops.items())
        ],
        "lost": [asdict(lost) for lost in result.lost],
    }


def _difference_json(difference: Difference) -> dict[str, Any]:
    return {
        "path": str(difference.path),
        "part": difference.part,
        "index": difference.index,
        "queue_offset": difference.position,
        "expected": difference.expected,
        "actual": difference.actual,
    }


def _counted(counts: Counts) -> Iterator[str]:
    for name, description in _COUNTED.items():
        count = getattr(counts, name)
        if count:
            yield f"counted, not compared: {count:,} {description}"
