"""``reput rebuild``: rebuild queues and index, or the queues of one topic."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from store.errors import ConfigError
from streaming.cli import EXIT_NO
from streaming.cli.lines import counted, print_json, print_line, say
from streaming.cli.option_groups import add_command
from streaming.cli.options import (
    BrokerOptions,
    Json,
    ScanOptions,
    Store,
    describe_settings,
    output_option,
    scan_feed,
)
from streaming.cli.show import drops_line, progress_bar
from streaming.spark.settings import SparkSettings

if TYPE_CHECKING:
    from checkpoints.root import DispatchRoot
    from store.config import StoreConfig
    from streaming.queries.rebuild import RebuildResult, RebuiltQueue


@dataclass(frozen=True, slots=True)
class ScopeOptions(ScanOptions):
    """What to rebuild, and what scans the log."""

    topic: Annotated[
        str | None,
        typer.Option(help="Rebuild only this topic's queues; no JVM.", show_default=False),
    ] = None
    queue: Annotated[
        int | None, typer.Option(help="Rebuild only this queue of the topic.", show_default=False)
    ] = None


def register(app: typer.Typer) -> None:
    """Add the command."""
    add_command(app, "rebuild", rebuild)


def rebuild(
    store: Store,
    output: Annotated[
        Path,
        output_option("The root to rebuild."),
    ],
    scope: ScopeOptions,
    broker: BrokerOptions,
    as_json: Json = False,
) -> None:
    """Rebuild queues and index from the log and swap them in.

    New files are built beside the old ones; OUTPUT does not change until they are swapped in.
    Without --topic everything is rebuilt, into a new OUTPUT or in place of the old queues and
    index. An interrupted rebuild resumes at its next start. A dispatch resumes where the rebuild
    ended.

    With --topic the topic's queues in a dispatched root are rebuilt up to its dispatched offset.
    A queue without messages in the log is left unchanged. Exits with 1 if there is no such queue.
    """
    if scope.topic is not None:
        _rebuild_topic(store, output, scope, broker, as_json=as_json)
        return
    if scope.queue is not None:
        raise ConfigError("--queue needs --topic")
    _rebuild_all(store, output, scope.spark_settings(), broker, as_json=as_json)


def _rebuild_topic(
    store: Path, output: Path, scope: ScopeOptions, broker: BrokerOptions, *, as_json: bool
) -> None:
    """Rebuild the queues of a topic, or one of them."""
    from checkpoints.rebuild import QueueSelection
    from store.root.config import open_store_config
    from streaming.queries.rebuild import rebuild_queues

    topic, queue = scope.topic, scope.queue
    assert topic is not None
    if scope.spark_settings() is not None:
        raise ConfigError("--master is for a rebuild of everything; --topic runs without Spark")
    config = open_store_config(
        store, output, broker.broker_conf, broker.broker_version, needs_log=False
    )
    if not as_json:
        say(describe_settings(config))
    with progress_bar("rebuilding", is_shown=sys.stderr.isatty() and not as_json) as report:
        root = _open_root(store, output, config)
        selection = QueueSelection(topic, queue, root.progress)
        queues = rebuild_queues(root, selection, report=report)
    for rebuilt in queues:
        if as_json:
            print_json(_queue_json(rebuilt))
        else:
            for line in _queue_lines(rebuilt):
                print_line(line)
    if not queues:
        what = f"topic {topic}" if queue is None else f"{topic}/{queue}"
        say(f"neither the log nor {output} has a queue of {what}")
        raise typer.Exit(EXIT_NO)


def _rebuild_all(
    store: Path,
    output: Path,
    settings: SparkSettings | None,
    broker: BrokerOptions,
    *,
    as_json: bool,
) -> None:
    """Rebuild everything."""
    from streaming.queries.rebuild import rebuild_root, take_root

    root = take_root(store, output, broker.broker_conf, broker.broker_version)
    if not as_json:
        say(describe_settings(root.log.config))
    is_shown = sys.stderr.isatty() and not as_json
    with ExitStack() as stack:
        try:
            feed = stack.enter_context(scan_feed("reput rebuild", settings, store, root.log.config))
            report = stack.enter_context(progress_bar("rebuilding", is_shown=is_shown))
        except BaseException:
            root.close(clean=False)
            raise
        result = rebuild_root(root, feed, report)
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
    for (topic, queue_id), drops in sorted(result.drops.items()):
        yield drops_line(topic, queue_id, repeated=drops.repeated, gaps=drops.gaps)


def _result_json(result: RebuildResult) -> dict[str, Any]:
    return asdict(result) | {
        "drops": [
            {"topic": topic, "queue_id": queue_id, **asdict(drops)}
            for (topic, queue_id), drops in sorted(result.drops.items())
        ]
    }


def _open_root(store: Path, output: Path, config: StoreConfig) -> DispatchRoot:
    """Open a dispatched root, which recovers it if necessary."""
    from checkpoints.progress import read_progress
    from checkpoints.root import DispatchRoot

    if read_progress(output) is None:
        raise ConfigError(
            f"{output} was not built by reput: run reput dispatch STORE --output {output} first, "
            "which adopts it"
        )
    root = DispatchRoot.open(output, store, config)
    for done in root.recovered:
        say(f"recovered first: {done.why}; the root is at {done.to_offset} now")
    return root


def _queue_lines(queue: RebuiltQueue) -> Iterator[str]:
    name = f"{queue.topic}/{queue.queue_id}"
    if queue.kept:
        yield f"{name}: left unchanged: {queue.kept}"
        return
    yield f"{name}: rebuilt, queue offsets {queue.first_offset} to {queue.max_offset}"
    drops = queue.drops
    if drops.repeated or drops.gaps:
        yield drops_line(queue.topic, queue.queue_id, repeated=drops.repeated, gaps=drops.gaps)


def _queue_json(queue: RebuiltQueue) -> dict[str, Any]:
    is_rebuilt = not queue.kept
    return {
        "topic": queue.topic,
        "queue_id": queue.queue_id,
        "rebuilt": is_rebuilt,
        "first_offset": queue.first_offset if is_rebuilt else None,
        "max_offset": queue.max_offset if is_rebuilt else None,
        **asdict(queue.drops),
        "reason": queue.kept or None,
    }
