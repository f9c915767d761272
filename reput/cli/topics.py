"""``reput topics``: topics, queues, and the lag of consumer groups and delay levels; no JVM."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer

from reput.cli.columns import Cell, Column, Fit, Moment
from reput.cli.lines import counted, duration_text, print_json, print_line, say
from reput.cli.options import Json, ReadOptions
from reput.cli.show import BROKER, broker_json, drops_line, exit_not_found, progress_bar
from reput.cli.stores import Failures, NamedStore, Stores, opened_stores, read_stores
from store.broker_files import ConfigFile, encode_topics
from store.errors import ConfigError, StoreError
from store.topics.consumer_lag import Lag
from store.topics.overview import Overview, TopicState, describe_topics
from store.topics.queue_state import QueueState
from store.topics.topics_json import overview_rows

_TOPIC = Column("topic", Fit.WHOLE)
_QUEUE_COLUMNS = (
    _TOPIC,
    Column("perm", rank=3),
    Column("read", rank=4, is_right=True),
    Column("write", rank=5, is_right=True),
    Column("queue", is_right=True),
    Column("min", is_right=True),
    Column("max", is_right=True),
    Column("earliest", rank=2),
    Column("latest", rank=1),
    Column("attributes", Fit.FOLDED, rank=6),
)
_LAG_COLUMNS = (
    Column("queue", is_right=True),
    Column("offset", is_right=True),
    Column("max", rank=3, is_right=True),
    Column("lag", is_right=True),
    Column("lag in time", rank=1, is_right=True),
    Column("waiting since", rank=4),
    Column("note", Fit.FOLDED, rank=2),
)


def topics(
    store: Stores,
    where: ReadOptions,
    write_topics_json: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Instead, write a topics.json for a broker that has lost it to this new file: the "
            "topics and queue counts of the log.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show topics, queues and the lag of consumer groups.

    Offsets, the committed ones too, are positions in the queues. They and the store times come
    from the queues; permissions, queue counts, attributes, committed offsets and delivered delay
    levels from STORE/config/, or from their .bak, which is reported. Lag in time is measured
    between two messages: the first one not consumed and the newest.
    """
    stores = read_stores(store, where.broker_conf, where.output)
    if write_topics_json is not None:
        _write_topics_json(stores, where, write_topics_json, as_json=as_json)
        return
    failures, overviews = Failures(), dict[str, Overview]()
    with opened_stores(stores, where, failures) as opened:
        for name, s in opened.items():
            with failures.of(name):
                overviews[name] = describe_topics(s)
        if as_json:
            for name, overview in overviews.items():
                for row in overview_rows(overview):
                    print_json(broker_json(row, name))
        else:
            _print_topics(overviews)
        for name, overview in overviews.items():
            for damage in (*_damages(overview), *overview.links):
                failures.add(name, damage)
        failures.exit()


def _write_topics_json(
    stores: Sequence[NamedStore], where: ReadOptions, path: Path, *, as_json: bool
) -> None:
    """Write the topics of the log to a new file. Exits with 1 if there is none."""
    from store.io.links import io_errors
    from store.io.new_file import write_new_file
    from store.output.resolve_config import open_store_config
    from store.topics.topics_from_log import topics_from_log

    if len(stores) > 1:
        raise ConfigError("--write-topics-json applies to one STORE")
    store, output = stores[0].store_root, stores[0].output
    broker = where.broker_conf, where.broker_version
    config = open_store_config(store, output, *broker, needs_log=True)
    if os.path.lexists(path):
        raise _file_exists(path)
    logs = config.commit_log_paths(store)
    if any(path.resolve().is_relative_to(log.resolve()) for log in logs):
        raise ConfigError(f"--write-topics-json {path} is inside the commit log")
    with progress_bar("reading", as_json=as_json) as report:
        found = topics_from_log(store, output or store, config, report)
    for damage in found.damages:
        say(f"skipped: offsets {damage.begin} to {damage.end} of {damage.path}: {damage.reason}")
    if not found.topics.count:
        exit_not_found("NO_TOPIC", "no topic to write: the log has none", {}, as_json=as_json)
    with io_errors("create", path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    try:
        write_new_file(path, encode_topics(found.queue_counts()))
    except FileExistsError as e:  # since the beginning
        raise _file_exists(path) from e
    if as_json:
        print_json({"to": str(path), "topics": dict(found.queue_counts())})
        return
    for topic, count in found.queue_counts():
        print_line(f"{topic}: {counted(count, 'queue')}")
    print_line(f"wrote {counted(found.topics.count, 'topic')} to {path}")


def _file_exists(path: Path) -> ConfigError:
    return ConfigError(f"--write-topics-json {path} exists: give a new file")


def _print_topics(overviews: Mapping[str, Overview]) -> None:
    """Print the tables of all stores, then what else there is to say of each."""
    tables = (
        ("topics and queues", _QUEUE_COLUMNS, _queue_rows),
        ("consumer groups", (Column("group", Fit.WHOLE), _TOPIC, *_LAG_COLUMNS), _group_rows),
        (
            "delay levels, delivered up to",
            (Column("level", is_right=True), *_LAG_COLUMNS),
            _level_rows,
        ),
    )
    for name, overview in overviews.items():
        if not overview.topics:
            say(_of(name, "no topic has a queue"))
    for title, columns, rows_of in tables:
        rows = (
            [*row, *([name] if name else [])] for name, o in overviews.items() for row in rows_of(o)
        )
        _print_table((*columns, BROKER) if any(overviews) else columns, rows, title)
    for name, overview in overviews.items():
        for line in _drops(overview):
            print_line(_of(name, line))
        for line in _problems(overview.files):
            say(line)


def _print_table(columns: tuple[Column, ...], rows: Iterator[list[Cell]], title: str) -> None:
    """Print the rows of all stores, if there are any."""
    from reput.cli.tables import print_table

    first = next(rows, None)
    if first is not None:
        print_table(columns, chain([first], rows), title)


def _of(name: str, text: str) -> str:
    return f"{name}: {text}" if name else text


def _queue_rows(overview: Overview) -> Iterator[list[Cell]]:
    return (row for topic in overview.topics for row in _topic_rows(topic))


def _group_rows(overview: Overview) -> Iterator[list[Cell]]:
    return ([group, lag.queue.topic, *_lag_cells(lag)] for group, lag in overview.groups)


def _level_rows(overview: Overview) -> Iterator[list[Cell]]:
    return ([str(level), *_lag_cells(lag)] for level, lag in overview.delay_levels)


def _drops(overview: Overview) -> Iterator[str]:
    """Yield lines on the messages that a broker's own rules dropped or misplaced."""
    for queue in (queue for topic in overview.topics for queue in topic.queues):
        if queue.repeated or queue.gaps:
            yield drops_line(
                queue.topic,
                queue.queue_id,
                repeated=queue.repeated or 0,
                gaps=queue.gaps or 0,
            )


def _topic_rows(topic: TopicState) -> Iterator[list[Cell]]:
    """Yield one row per queue; the first has the topic's own columns."""
    config = topic.config
    head, attributes = [topic.topic, "", "", ""], ""
    if config is not None:
        counts = (config.read_queue_nums, config.write_queue_nums)
        head[1:] = [config.perm_text, *("" if n is None else str(n) for n in counts)]
        attributes = " ".join(f"{name}={value}" for name, value in config.attributes.items())
    for queue in topic.queues:
        yield [*head, *_queue_cells(queue), attributes]
        head, attributes = [""] * len(head), ""
    if not topic.queues:
        yield [*head, *("" for _ in range(5)), attributes]


def _queue_cells(queue: QueueState) -> list[Cell]:
    if queue.damage is not None:
        return [str(queue.queue_id), "", "", "damaged", ""]
    times = (queue.earliest_timestamp, queue.latest_timestamp)
    offsets = (queue.queue_id, queue.min_offset, queue.max_offset)
    return [*map(str, offsets), *("" if t < 0 else Moment(t) for t in times)]


def _lag_cells(lag: Lag) -> list[Cell]:
    return [
        str(lag.queue.queue_id),
        "none" if lag.offset is None else str(lag.offset),
        str(lag.queue.max_offset),
        "" if lag.messages is None else str(lag.messages),
        "" if lag.milliseconds is None else duration_text(lag.milliseconds),
        "" if lag.next_timestamp is None else Moment(lag.next_timestamp),
        _lag_note(lag),
    ]


def _lag_note(lag: Lag) -> str:
    if lag.queue.damage is not None or lag.damage is not None:
        return "damaged"
    if lag.offset is None:
        return "nothing committed"
    if lag.offset > lag.queue.max_offset:
        return "beyond the queue's end"
    return f"{lag.expired} of these have expired" if lag.expired else ""


def _problems(files: tuple[ConfigFile[Any], ...]) -> Iterator[str]:
    """Yield the problems of the broker's config files."""
    directory = files[0].path.parent
    if not directory.is_dir():
        yield f"{directory} is missing: no topic settings and no committed offsets are known"
        return
    for file in files:
        if file.problem:
            yield file.problem


def _damages(overview: Overview) -> Iterator[StoreError]:
    for topic in overview.topics:
        for queue in topic.queues:
            if queue.damage is not None:
                yield queue.damage
    for lag in (lag for _, lag in (*overview.groups, *overview.delay_levels)):
        if lag.damage is not None:
            yield lag.damage
