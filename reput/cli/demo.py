"""``reput demo``: a tour on a commit log that the demo itself writes."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from reput.cli.columns import Cell, Column, Fit, Moment
from reput.cli.dispatch_report import Reporter
from reput.cli.lines import time_text
from reput.cli.query_runner import Query, QueryRunner
from reput.cli.show import print_messages
from reput.cli.tables import print_table
from store import Boundary, MessageStore
from store.config import BROKER_CONF, load_config
from store.errors import ConfigError, StoreError
from store.io.user_path import given_path
from store.layout import COMMIT_LOG_DIR, SCHEDULE_TOPIC
from store.printable import printable
from streaming.spark.spark_settings import SparkSettings

if TYPE_CHECKING:
    from store.commitlog.commit_log import CommitLog

_POLL_SECONDS = 0.1
_CATCH_UP_SECONDS = 300.0  # the first batch of an installation compiles the kernels
_TOPIC = "OrderTopic"  # the topic that the tour reads
_QUEUE_COLUMNS = (
    Column("topic", Fit.WHOLE),
    *(Column(name, is_right=True) for name in ("queue", "min offset", "max offset")),
    Column("first stored"),
)


def demo(
    seconds: Annotated[float, typer.Option(help="How long to write messages.")] = 8.0,
    directory: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            parser=given_path,
            help="The demo's directory. Default: a new temporary directory.",
        ),
    ] = None,
) -> None:
    """Run a tour on a commit log that the demo writes.

    Dispatches, reads and verifies it, then exits.
    """
    place = directory if directory is not None else Path(tempfile.mkdtemp(prefix="reput-demo-"))
    store, output = place / "store", place / "output"
    from reput.cli.demo_log import BROKER_CONF as DEMO_CONF

    _check_directory(place, store / BROKER_CONF, DEMO_CONF)
    (store / COMMIT_LOG_DIR).mkdir(parents=True, exist_ok=True)
    (store / BROKER_CONF).write_text(DEMO_CONF)
    console = Console(markup=False, highlight=False)
    _write_and_dispatch(console, store, output, seconds)
    _read(console, store, output)
    _verify(console, store, output)
    _farewell(console, place, store, output)


def _check_directory(place: Path, conf: Path, demo_conf: str) -> None:
    """Raise ConfigError for a directory that contains anything but an earlier demo."""
    is_demo = conf.is_file() and conf.read_bytes() == demo_conf.encode()
    if not is_demo and place.exists() and not (place.is_dir() and not any(place.iterdir())):
        raise ConfigError(
            f"{place} is neither empty nor from an earlier demo: name a new directory"
        )


def _write_and_dispatch(console: Console, store: Path, output: Path, seconds: float) -> None:
    """Append to the log in another process while the streaming query dispatches it."""
    from streaming.queries.dispatch_query import DispatchOptions, prepare_dispatch

    console.rule("1. A broker's commit log grows, the streaming query dispatches it")
    _print(
        console,
        f"A second process appends orders, payments and delayed reminders to {store}/commitlog "
        f"for {seconds:g} s. Spark tails it and builds consumequeue/ and index/ in {output}.",
    )
    reporter = Reporter(is_live=sys.stderr.isatty())
    options = DispatchOptions(on_progress=reporter.report)

    with QueryRunner(reporter) as runner:
        query = Query(prepare_dispatch(store, output, options), reporter, has_end=False)
        runner.queries.append(query)
        runner.run(
            "reput dispatch", SparkSettings(), lambda stop: _write(query, stop, store, seconds)
        )


def _write(query: Query, stop: threading.Event, store: Path, seconds: float) -> None:
    """Run the writer, then wait until everything it wrote has been dispatched."""
    from store.commitlog.commit_log import CommitLog

    running = query.running
    assert running is not None

    command = [sys.executable, "-m", f"{__package__}.demo_log", str(store), str(seconds)]
    with subprocess.Popen(command) as writer:
        try:
            while writer.poll() is None and running.query.isActive and not stop.is_set():
                time.sleep(_POLL_SECONDS)
        finally:
            writer.terminate()
    if stop.is_set():
        raise StoreError("the demo was stopped")
    if running.query.isActive and writer.returncode != 0:
        raise StoreError(f"the demo's writer failed (exit {writer.returncode})")
    log = CommitLog([store / COMMIT_LOG_DIR], load_config(store))
    limit = time.monotonic() + _CATCH_UP_SECONDS
    while running.query.isActive and not stop.is_set():
        if running.sink.counts.durable_to >= _end(log):
            return
        if time.monotonic() > limit:
            raise StoreError(f"the dispatch did not catch up within {_CATCH_UP_SECONDS:g} s")
        time.sleep(_POLL_SECONDS)


def _end(log: CommitLog) -> int:
    log.refresh()
    return log.max_offset()


def _read(console: Console, store: Path, output: Path) -> None:
    """Read the built queues and index, without Spark and without a broker."""
    with MessageStore.open(store, output) as reader:
        console.rule("2. The queues")
        print_table(_QUEUE_COLUMNS, _queue_rows(reader))

        console.rule("3. Messages by queue offset")
        middle = reader.max_offset_in_queue(_TOPIC, 1) // 2
        _say_command(console, f"get {store} --topic {_TOPIC} --queue 1 --offset {middle} --max 3",
                     output)  # fmt: skip
        found = reader.get_message(_TOPIC, 1, middle, 3).messages
        print_messages(found)

        console.rule("4. From a time to a queue offset")
        stamp = found[0].store_timestamp
        _say_command(console, f"offset {store} --topic {_TOPIC} --queue 1 --time {stamp}", output)
        offset = reader.offset_in_queue_by_time(_TOPIC, 1, stamp, Boundary.LOWER)
        _print(
            console, f"the first message stored at or after {time_text(stamp)} has offset {offset}"
        )

        console.rule("5. Messages by key")
        key = (found[0].keys or "").split(" ")[0]
        _say_command(console, f"query {store} --topic {_TOPIC} --key {key}", output)
        print_messages(reader.query_message(_TOPIC, key).messages)

        console.rule("6. A delayed message")
        _show_delayed(console, reader)


def _queue_rows(reader: MessageStore) -> Iterator[tuple[Cell, ...]]:
    for topic in reader.topics():
        for queue in reader.queue_ids(topic):
            yield (
                topic,
                str(queue),
                str(reader.min_offset_in_queue(topic, queue)),
                str(reader.max_offset_in_queue(topic, queue)),
                Moment(reader.earliest_message_time(topic, queue)),
            )


def _show_delayed(console: Console, reader: MessageStore) -> None:
    """Show that a unit of a schedule queue holds the due time in place of a tags code."""
    for queue in reader.queue_ids(SCHEDULE_TOPIC)[:1]:
        for message in reader.get_message(SCHEDULE_TOPIC, queue, 0, 1).messages:
            level = message.properties["DELAY"]
            real = message.properties["REAL_TOPIC"]
            _print(
                console,
                f"{SCHEDULE_TOPIC} queue {queue} holds a message for {real}, delay level {level},"
                f" stored {time_text(message.store_timestamp)}; its queue unit holds the due time"
                " in place of a tags code",
            )


def _verify(console: Console, store: Path, output: Path) -> None:
    """Derive everything again from the log and compare."""
    from reput.cli.verify import summary
    from streaming.queries.verify import verify

    console.rule("7. Are queues and index correct?")
    _say_command(console, f"verify {store}", output)
    result = verify(store, output, load_config(store))
    for line in summary(result):
        _print(console, line)
    if not result.is_equal:
        raise StoreError("the demo's own files do not verify: please report this")


def _farewell(console: Console, place: Path, store: Path, output: Path) -> None:
    console.rule("What just happened")
    _print(
        console,
        "A commit log was written, tailed by a Spark Structured Streaming query and dispatched "
        "into ConsumeQueue and IndexFile, byte for byte as a RocketMQ broker writes them; then "
        "read by offset, time and key without a broker.\n\n"
        "On your own store (STORE is the broker's storePathRootDir; it is only read):\n"
        "  build queues and index once:\n"
        "    reput dispatch STORE --output OUTPUT --available-now\n"
        "  keep them built, until Ctrl-C:\n"
        "    reput dispatch STORE --output OUTPUT\n"
        "  check the broker's own files:\n"
        "    reput verify STORE\n"
        "  find messages by key K:\n"
        "    reput query STORE --topic T --key K\n\n"
        f"The demo's files are in {place} (rm -r it when you are done). Dispatching them again "
        "changes nothing:",
    )
    _say_command(console, f"dispatch {store} --available-now", output)
    _print(console, "\nSee them in a browser, with live tail, search and graphs, until Ctrl-C:")
    _say_command(console, f"serve {shlex.quote(str(store))}", output, program=_program())


def _program() -> str:
    """Return what a shell runs as reput: its path if it is not on PATH."""
    if shutil.which("reput") is not None:
        return "reput"
    path = Path(sys.executable).with_name("reput")
    here = Path.cwd()
    return shlex.quote(str(path.relative_to(here) if path.is_relative_to(here) else path))


def _say_command(console: Console, command: str, output: Path, *, program: str = "reput") -> None:
    text = f"$ {program} {command} --output {shlex.quote(str(output))}"
    console.print(Text(printable(text), style="bold"), soft_wrap=True)


def _print(console: Console, text: str) -> None:
    console.print("\n".join(map(printable, text.split("\n"))))
