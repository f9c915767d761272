"""``reput rebuild``: queues of a topic built again from the log and swapped in; no JVM."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from store.errors import ConfigError
from streaming.cli import EXIT_NO
from streaming.cli.options import (
    BrokerConf,
    BrokerVersion,
    Json,
    Store,
    describe_settings,
)
from streaming.cli.show import drops_line, print_json, printable, progress_bar, say

if TYPE_CHECKING:
    from checkpoints.rebuild import RebuiltQueue
    from store.config import StoreConfig
    from streaming.cli.show import Report


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("rebuild")(rebuild)


def rebuild(  # noqa: PLR0913, PLR0917 - one parameter an option
    store: Store,
    output: Annotated[Path, typer.Option(help="The root whose queues are rebuilt.")],
    topic: Annotated[str | None, typer.Option(help="The topic.", show_default=False)] = None,
    queue: Annotated[
        int | None, typer.Option(help="One queue of it; by default all.", show_default=False)
    ] = None,
    broker_conf: BrokerConf = None,
    broker_version: BrokerVersion = None,
    as_json: Json = False,
) -> None:
    """Build queues of a topic again from the log, and swap them for the old ones.

    For a root that a dispatch made and that is not in use. A queue is rebuilt as far as the root
    has been dispatched; one of which the log holds no message is left as it is. Exits with 1 if
    there is no such queue.
    """
    from checkpoints.settings import resolve_config

    if topic is None:
        raise ConfigError(
            "name a topic (--topic): what rebuilds everything is reput dispatch with a new OUTPUT"
        )
    if not store.is_dir():
        raise ConfigError(f"{store} is not a directory: give the broker's storePathRootDir")
    config = resolve_config(store, output, broker_conf, broker_version)
    if not as_json:
        say(describe_settings(config))
    with progress_bar("rebuilding", is_shown=sys.stderr.isatty() and not as_json) as report:
        queues = _rebuild((store, output), config, (topic, queue), report)
    for one in queues:
        if as_json:
            print_json(_json(one))
        else:
            for line in _lines(one):
                typer.echo(printable(line))
    if not queues:
        what = f"topic {topic}" if queue is None else f"{topic}/{queue}"
        say(printable(f"neither the log nor {output} has a queue of {what}"))
        raise typer.Exit(EXIT_NO)


def _rebuild(
    roots: tuple[Path, Path],
    config: StoreConfig,
    asked: tuple[str, int | None],
    report: Report | None,
) -> list[RebuiltQueue]:
    """Own the root, which is recovered then, and rebuild in it."""
    from checkpoints.progress import read_progress
    from checkpoints.rebuild import Rebuild
    from checkpoints.root import DispatchRoot
    from store.foreign import refuse_foreign_store
    from store.log_plan import LogPlanner

    store, output = roots
    if read_progress(output) is None:
        raise ConfigError(
            f"no dispatch of ours made {output}: run reput dispatch STORE --output {output} first, "
            "which takes it over"
        )
    refuse_foreign_store(store, config)
    root = DispatchRoot.open(output, store, config)
    try:
        for done in root.recovered:
            say(printable(f"recovered first: {done.why}; the root is at {done.to_offset} now"))
        planner = LogPlanner(root.log, lambda: root.is_log_clean(store))
        topic, queue_id = asked
        rebuild = Rebuild(root, planner, lambda q: q[0] == topic and queue_id in (None, q[1]))
        return rebuild.run(report)
    finally:
        root.close(clean=not root.is_in_swap())


def _lines(queue: RebuiltQueue) -> Iterator[str]:
    name = f"{queue.topic}/{queue.queue_id}"
    if queue.kept:
        yield f"{name}: left as it is: {queue.kept}"
        return
    yield f"{name}: rebuilt, queue offsets {queue.first_offset} to {queue.max_offset}"
    if queue.drops.repeated or queue.drops.gaps:
        yield drops_line(queue.topic, queue.queue_id, (queue.drops.repeated, queue.drops.gaps))


def _json(queue: RebuiltQueue) -> dict[str, Any]:
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
