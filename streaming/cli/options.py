"""Options that several commands share, and how their values are parsed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from store import MessageStore
from store.config import StoreConfig
from store.errors import ConfigError
from streaming.cli.show import say
from streaming.options import parse_bytes, parse_time_ms

if TYPE_CHECKING:
    from checkpoints.bulk.tasks import Run

Store = Annotated[
    Path, typer.Argument(metavar="STORE", help="The broker's storePathRootDir.", show_default=False)
]
Output = Annotated[
    Path | None,
    typer.Option(
        help="Where consumequeue/ and index/ lie, if not under STORE.", show_default=False
    ),
]
BrokerConf = Annotated[
    Path | None,
    typer.Option(
        "--broker-conf",
        help="The broker.conf the store was written with; by default STORE/broker.conf if it is "
        "there, else the broker's defaults.",
        show_default=False,
    ),
]
BrokerVersion = Annotated[
    str | None,
    typer.Option(
        "--broker-version",
        help="The RocketMQ version whose rules hold, such as 4.9.4 or 5.3. Default: 5.3.3, or "
        "what OUTPUT was made with.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")]


def parse_time(option: str, text: str | None) -> int | None:
    """Parse an option's time, epoch milliseconds or ISO 8601, into epoch ms; None if not given.

    ISO 8601 without a zone is local time. Raises ConfigError naming option and value.
    """
    if text is None:
        return None
    value = parse_time_ms(text)
    if value is None:
        raise ConfigError(
            f"{option} {text!r} is neither epoch milliseconds nor ISO 8601 "
            "(such as 2024-05-01T08:00:00Z)"
        )
    return value


def size_option(option: str, text: str | None) -> int | None:
    """Parse an option's size, None if not given. Raises ConfigError naming option and value."""
    if text is None:
        return None
    value = parse_bytes(text)
    if not value:
        raise ConfigError(f"{option} {text!r} is not a positive size in bytes (or 64m, 1g)")
    return value


def flag_option(option: str, text: str) -> bool:
    """Parse an option's true or false. Raises ConfigError naming option and value."""
    if text.lower() not in ("true", "false"):
        raise ConfigError(f"{option} {text!r} is neither true nor false")
    return text.lower() == "true"


def describe_settings(config: StoreConfig) -> str:
    """Say in one line which version's rules and which sizes are assumed."""
    index = (
        f"index {config.max_index_num:,} entries, {config.max_hash_slot_num:,} slots"
        if config.message_index_enable
        else "index off"
    )
    return (
        f"assuming RocketMQ {config.version}, commit log files of "
        f"{config.mapped_file_size_commit_log:,} bytes, consume queue files of "
        f"{config.mapped_file_size_consume_queue:,} bytes, {index}"
    )


@contextmanager
def opened_store(
    store: Path, output: Path | None, broker_conf: Path | None, broker_version: str | None
) -> Iterator[MessageStore]:
    """Open the store; after an answer say which settings were assumed for a broker's root."""
    with MessageStore.open(store, output, broker_conf, broker_version) as s:
        try:
            yield s
        except typer.Exit:
            _say_settings(s)
            raise
        _say_settings(s)


def _say_settings(s: MessageStore) -> None:
    if s.reput_from_offset() is None:
        say(describe_settings(s.config))


@contextmanager
def bulk_run(name: str, store: Path, config: StoreConfig, master: str | None) -> Iterator[Run]:
    """Give what runs bulk tasks: Spark for a master or a large log, else processes of this machine.

    Raises SparkError.
    """
    from streaming.processes import is_for_spark, processes

    if master is None and not is_for_spark(store, config):
        with processes() as run:
            yield run
        return
    from streaming.bulk import SparkRun
    from streaming.session import build_session

    spark = build_session(name, master)
    try:
        yield SparkRun(spark.sparkContext)
    finally:
        spark.stop()
