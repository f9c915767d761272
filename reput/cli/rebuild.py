"""``reput rebuild``: rebuild queues and index."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from reput.cli.lines import counted, print_json, print_line, say
from reput.cli.options import (
    BrokerOptions,
    Json,
    ScanOptions,
    Store,
    describe_settings,
    output_option,
    scan_feed,
)
from reput.cli.show import drops_line, progress_bar

if TYPE_CHECKING:
    from streaming.queries.rebuild import RebuildResult


def rebuild(
    store: Store,
    output: Annotated[Path, output_option("The OUTPUT to rebuild.")],
    scan: ScanOptions,
    broker: BrokerOptions,
    as_json: Json = False,
) -> None:
    """Rebuild queues and index from the log and swap them in.

    The files are built in a new OUTPUT, or beside the old ones; OUTPUT does not change until they
    are swapped in. An interrupted rebuild resumes at its next start. A dispatch resumes where the
    rebuild ended. Ranges of the log that OUTPUT has lost (--fail-on-data-loss false) are skipped
    where they are still damaged; if the log has other damage too, OUTPUT does not change.
    """
    from streaming.queries.rebuild import rebuild_output, take_output

    settings = scan.spark_settings()
    owned = take_output(store, output, broker.broker_conf, broker.broker_version)
    if not as_json:
        say(describe_settings(owned.log.config))
    with ExitStack() as stack:
        try:
            feed = stack.enter_context(
                scan_feed("reput rebuild", settings, store, owned.log.config)
            )
            report = stack.enter_context(progress_bar("rebuilding", as_json=as_json))
        except BaseException:
            owned.close(clean=False)
            raise
        result = rebuild_output(owned, feed, report)
    if as_json:
        print_json(_result_json(result))
    else:
        for line in _result_lines(output, result):
            print_line(line)
    if result.damage is not None:
        raise result.damage.error()


def _result_lines(output: Path, result: RebuildResult) -> Iterator[str]:
    seconds = sum(result.stages.values())
    size = result.end_offset - result.resumed_from
    yield (
        f"rebuilt {output}: {counted(result.messages, 'message')}, offsets "
        f"{result.begin_offset:,} to {result.end_offset:,}, in "
        f"{counted(result.queues, 'queue')} and {counted(result.index_files, 'index file')}"
    )
    stages = ", ".join(f"{name} {taken:.1f} s" for name, taken in result.stages.items())
    yield f"{seconds:.1f} s ({stages}): {size / max(seconds, 1e-9) / 1e6:,.0f} MB of log per second"
    if result.resumed_from > result.begin_offset:
        yield f"resumed an interrupted rebuild from offset {result.resumed_from:,}"
    for lost in result.lost:
        yield f"skipped offsets {lost.begin:,} to {lost.end:,}, which are lost: {lost.reason}"
    for (topic, queue_id), drops in sorted(result.drops.items()):
        yield drops_line(topic, queue_id, repeated=drops.repeated, gaps=drops.gaps)


def _result_json(result: RebuildResult) -> dict[str, Any]:
    return asdict(result) | {
        "drops": [
            {"topic": topic, "queue_id": queue_id, **asdict(drops)}
            for (topic, queue_id), drops in sorted(result.drops.items())
        ]
    }
