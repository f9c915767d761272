"""The options of an export, and the settings that follow from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from reput.export.export_record import ExportSettings
from reput.export.not_consumed import NotConsumed
from reput.export.task import JSONL, NONE, PARQUET, similar_names
from store.arrow.schema import MESSAGE_FIELDS
from store.commitlog.compression import BODY_BYTES_MAX
from store.commitlog.message_json import BODY_FIELDS, JSON_FIELDS
from store.consumequeue.names import is_system_topic
from store.errors import ConfigError, shown

COMPRESSIONS = {PARQUET: ("snappy", "zstd", "gzip", NONE), JSONL: (NONE, "gzip", "zstd")}
_PARTITION_COLUMNS = ("topic", "day")
_COLUMNS = {PARQUET: tuple(MESSAGE_FIELDS), JSONL: (*JSON_FIELDS, *BODY_FIELDS)}


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """The options of an export.

    Times are epoch ms of the store time, both inclusive. ``compression`` None is the format's
    default (snappy for Parquet, none for JSON Lines). ``columns`` None is all columns; those of
    JSON Lines are the fields of ``get --json``. ``append`` resumes where the last export into the
    directory ended. ``not_consumed_by`` is a consumer group: only messages of its topics that it
    has not consumed are exported; it excludes ``append``. ``output`` has queues that translate the
    group's offsets where STORE's own cannot.
    """

    file_format: str = PARQUET
    topics: tuple[str, ...] = ()
    from_time: int | None = None
    to_time: int | None = None
    broker_conf: Path | None = None
    broker_version: str | None = None
    fail_on_data_loss: bool = True
    max_body_bytes: int = BODY_BYTES_MAX
    compression: str | None = None
    columns: tuple[str, ...] | None = None
    exclude_system: bool = False
    append: bool = False
    not_consumed_by: str | None = None
    output: Path | None = None


def make_settings(
    store_root: Path, options: ExportOptions, not_consumed: NotConsumed | None = None
) -> ExportSettings:
    """Return the settings of an export. Raises ConfigError, which names the wrong option."""
    kind, begin, end = options.file_format, options.from_time, options.to_time
    if kind not in COMPRESSIONS:
        known = ", ".join(COMPRESSIONS)
        raise ConfigError(f"--format {shown(kind)} is not known; known are {known}")
    if begin is not None and end is not None and begin > end:
        raise ConfigError(f"--from-time {begin} is after --to-time {end}")
    for topic in options.topics:
        if options.exclude_system and is_system_topic(topic):
            raise ConfigError(f"--topic {topic} is a system topic: omit --exclude-system")
    compression = options.compression or COMPRESSIONS[kind][0]
    if compression not in COMPRESSIONS[kind]:
        known = ", ".join(COMPRESSIONS[kind])
        raise ConfigError(f"--compression {shown(compression)}: {kind} files can have {known}")
    return ExportSettings(
        store=str(store_root.resolve()),
        file_format=kind,
        compression=compression,
        columns=_columns(kind, options.columns),
        topics=not_consumed.topics if not_consumed else tuple(sorted(set(options.topics))),
        exclude_system=options.exclude_system,
        from_time=begin,
        not_consumed_by=options.not_consumed_by,
    )


def _columns(kind: str, requested: Sequence[str] | None) -> tuple[str, ...]:
    """Return the columns of the files; topic and day are in the directory names."""
    known = _COLUMNS[kind]
    for name in requested or ():
        if name not in known and name not in _PARTITION_COLUMNS:
            similar = similar_names(name, set(known))
            hint = f"known are {', '.join(known)}"
            if similar:
                hint = f"did you mean {any_of(similar)}?"
            raise ConfigError(f"--columns: {kind} files have no column {shown(name)}; {hint}")
    if requested is None:
        chosen = known
    elif kind == JSONL:
        named = {*requested, *(BODY_FIELDS if BODY_FIELDS[1] in requested else ())}
        chosen = tuple(name for name in known if name in named)
    else:
        chosen = tuple(name for name in dict.fromkeys(requested) if name in known)
    if kind == PARQUET:
        chosen = tuple(name for name in chosen if name not in _PARTITION_COLUMNS)
    if not chosen:
        raise ConfigError("--columns: name at least one column besides topic and day")
    return chosen


def any_of(names: Sequence[str]) -> str:
    """Return names as alternatives."""
    return " or ".join(map(repr, names))
