"""Options shared by several commands, and the parsing of their values."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reput.cli.lines import say
from store import MessageStore
from store.commitlog.compression import BODY_BYTES_CEILING, BODY_BYTES_MAX
from store.config import StoreConfig
from store.errors import ConfigError, DamageError, shown
from store.io.user_path import given_output, given_path
from store.java import parse_boolean
from store.output.resolve_config import find_config
from store.unsupported import require_log_files
from streaming.sources.option_values import TIME_FORMS, parse_bytes, parse_time
from streaming.spark.spark_settings import SparkSettings, parse_conf, refuse_remote

if TYPE_CHECKING:
    from streaming.queries.feed import Feed

SECONDS_MAX = 366 * 24 * 3600  # largest value of an option in seconds

# Defaults of the options that name a store and its settings. Only they are read from the
# environment, so a command without such an option ignores its variable.
STORE_VARIABLE = "REPUT_STORE"
OUTPUT_VARIABLE = "REPUT_OUTPUT"
_CONF_VARIABLE = "REPUT_BROKER_CONF"
_VERSION_VARIABLE = "REPUT_BROKER_VERSION"

Store = Annotated[
    Path,
    typer.Argument(
        metavar="STORE",
        envvar=STORE_VARIABLE,
        parser=given_path,
        help="The broker's storePathRootDir.",
    ),
]


def output_option(help_text: str) -> Any:
    """Return the option that names OUTPUT."""
    return typer.Option(metavar="PATH", parser=given_output, envvar=OUTPUT_VARIABLE, help=help_text)


Output = Annotated[
    Path | None, output_option("The directory of consumequeue/ and index/, if not STORE.")
]
BrokerConf = Annotated[
    Path | None,
    typer.Option(
        "--broker-conf",
        envvar=_CONF_VARIABLE,
        help="The broker.conf the store was written with. Default: STORE/broker.conf if it "
        "exists. What it lacks is taken from OUTPUT's progress or the sizes of the files, else it "
        "is the broker's default.",
    ),
]
BrokerVersion = Annotated[
    str | None,
    typer.Option(
        "--broker-version",
        envvar=_VERSION_VARIABLE,
        help="The RocketMQ version whose rules apply, such as 4.9.4 or 5.3. Default: 5.3.3, or "
        "the version OUTPUT was built with.",
    ),
]
MaxBodyBytes = Annotated[
    str | None,
    typer.Option(
        "--max-body-bytes",
        help="The maximum size of a body that is decompressed or matched, such as 64m (the "
        "default) or 1g.",
    ),
]
StuckAfter = Annotated[
    float, typer.Option(metavar="SECONDS", help="How long a message may wait without progress.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]
StoredFrom = Annotated[str | None, typer.Option(help=f"Stored at or after: {TIME_FORMS}.")]
StoredTo = Annotated[str | None, typer.Option(help="Stored at or before, likewise.")]
KafkaProperty = Annotated[
    list[str] | None,
    typer.Option(
        "--kafka-property",
        metavar="KEY=VALUE",
        help="A Kafka client option, by Kafka's name (repeatable).",
    ),
]
KafkaProperties = Annotated[
    Path | None,
    typer.Option(
        "--kafka-properties",
        metavar="FILE",
        help="A properties file with such options (security.protocol=SASL_SSL …).",
    ),
]


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """The broker whose settings and rules apply."""

    broker_conf: BrokerConf = None
    broker_version: BrokerVersion = None


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The directory to read, and the broker whose settings and rules apply."""

    output: Output = None
    broker_conf: BrokerConf = None
    broker_version: BrokerVersion = None


SparkConf = Annotated[
    list[str] | None,
    typer.Option(
        "--conf",
        metavar="KEY=VALUE",
        help="A setting of Spark, such as spark.driver.memory=4g (repeatable).",
    ),
]


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """The Spark session of a long-running query, and the format of its log."""

    master: Annotated[str | None, typer.Option(help="Spark master URL [default: local[*]]")] = None
    conf: SparkConf = None
    as_json: Json = False

    def spark_settings(self) -> SparkSettings:
        """Return the settings of Spark. Raises ConfigError."""
        refuse_remote()
        return SparkSettings(self.master, parse_conf(self.conf or []))


@dataclass(frozen=True, slots=True)
class ScanOptions:
    """What scans the log: threads of this process, or Spark."""

    master: Annotated[
        str | None,
        typer.Option(
            help="Scan the log with a Spark query on this master URL. By default, threads of this "
            "process scan it, without a JVM."
        ),
    ] = None
    conf: SparkConf = None

    def spark_settings(self) -> SparkSettings | None:
        """Return the settings of Spark, None without a master. Raises ConfigError."""
        if self.master is not None:
            refuse_remote()
            return SparkSettings(self.master, parse_conf(self.conf or []))
        if self.conf:
            raise ConfigError("--conf is for Spark, which only --master starts here")
        return None


def is_from_variable(output: Path | None) -> bool:
    """Return whether an OUTPUT is that of its variable, which any other OUTPUT overrides."""
    return output is not None and str(output) == str(Path(os.environ.get(OUTPUT_VARIABLE, "")))


def size_option(option: str, text: str | None) -> int | None:
    """Parse an option's size, None if not given. Raises ConfigError naming option and value."""
    if text is None:
        return None
    value = parse_bytes(text)
    if not value:
        raise ConfigError(f"{option} {shown(text)} is not a positive size in bytes (or 64m, 1g)")
    return value


def body_limit(text: str | None) -> int:
    """Parse ``--max-body-bytes``. Raises ConfigError naming option and value."""
    value = size_option("--max-body-bytes", text)
    if text is not None and value is not None and value > BODY_BYTES_CEILING:
        raise ConfigError(f"--max-body-bytes {shown(text)} is more than {BODY_BYTES_CEILING} bytes")
    return value or BODY_BYTES_MAX


def parse_span(begin: str | None, end: str | None) -> tuple[int | None, int | None]:
    """Parse ``--from-time`` and ``--to-time`` into epoch ms. Raises ConfigError."""
    span = parse_time("--from-time", begin), parse_time("--to-time", end)
    if span[0] is not None and span[1] is not None and span[0] > span[1]:
        raise ConfigError(f"--from-time {begin} is later than --to-time {end}")
    return span


def check_seconds(option: str, value: float) -> float:
    """Return a duration in seconds. Raises ConfigError if it is out of range, infinite or NaN."""
    if not 0 <= value <= SECONDS_MAX:
        raise ConfigError(f"{option} {value} is not a number of seconds from 0 to {SECONDS_MAX}")
    return value


def flag_option(option: str, text: str) -> bool:
    """Parse an option's true or false. Raises ConfigError naming option and value."""
    value = parse_boolean(text)
    if value is None:
        raise ConfigError(f"{option} {shown(text)} is neither true nor false")
    return value


def describe_settings(config: StoreConfig) -> str:
    """Return one line that names the assumed version and file sizes."""
    index = (
        f"index {config.max_index_num:,} entries, {config.max_hash_slot_num:,} slots"
        if config.message_index_enable
        else "index off"
    )
    text = (
        f"assuming RocketMQ {config.version}, commit log files of "
        f"{config.mapped_file_size_commit_log:,} bytes, consume queue files of "
        f"{config.mapped_file_size_consume_queue:,} bytes, {index}"
    )
    if config.rocksdb_queues:
        text += f"; the broker's own queues are not read ({config.rocksdb_queues})"
    return text


@contextmanager
def opened_store(
    store: Path,
    where: ReadOptions | BrokerOptions,
    max_body_bytes: str | None = None,
    name: str = "",
) -> Iterator[MessageStore]:
    """Open the store for reading, its log alone if ``where`` has no output.

    ``name`` is that of its broker among several.

    For a broker's own files, the assumed settings are reported if the answer is "no" or damage:
    other settings may give another answer.
    """
    limit = body_limit(max_body_bytes)
    with _opened(store, where) as s:
        s.max_body_bytes = limit
        if s.reput_from_offset() is None:
            require_log_files(store, s.config)
        try:
            yield s
        except (typer.Exit, DamageError):
            if s.reput_from_offset() is None:
                say(
                    f"{name}: {describe_settings(s.config)}"
                    if name
                    else describe_settings(s.config)
                )
            raise


def _opened(store: Path, where: ReadOptions | BrokerOptions) -> MessageStore:
    broker = where.broker_conf, where.broker_version
    if isinstance(where, ReadOptions):
        return MessageStore.open(store, where.output, *broker)
    return MessageStore(store, store, find_config(store, None, *broker))


@contextmanager
def scan_feed(
    command: str, settings: SparkSettings | None, store: Path, config: StoreConfig
) -> Iterator[Feed | None]:
    """Yield a feed that scans the log on Spark, None without settings: use threads.

    Raises SparkError.
    """
    if settings is None:
        yield None
        return
    from streaming.queries.spark_feed import spark_feed
    from streaming.spark.session import build_session

    spark = build_session(command, settings.master, settings.conf)
    try:
        yield spark_feed(spark, store, config)
    finally:
        spark.stop()
