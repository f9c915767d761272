"""The export of messages to Parquet or JSON Lines files, with a directory for each topic and day.

Spark, DuckDB and others read ``DIR/topic=T/day=YYYY-MM-DD/part-….parquet`` (or ``.jsonl``) as a
table with the columns ``topic`` and ``day``. The day is that of the store time, in UTC.

Tasks write the files (``reput.export.task``), in threads of this process. This module plans
the tasks and commits their files, all or nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from checkpoints.recovery.fingerprint import find_log_change, read_fingerprint
from reput.export.directory import ExportDirectory, check_directory
from reput.export.export_record import ExportRecord, ExportSettings
from reput.export.not_consumed import NotConsumed, read_not_consumed
from reput.export.options import ExportOptions, any_of, make_settings
from reput.export.resume import QueueSources
from reput.export.task import (
    ExportedPart,
    FileSpec,
    export_part,
    similar_names,
)
from store.commitlog.boundary_search import first_stored_at
from store.commitlog.commit_log import CommitLog, ReportProgress, was_closed_cleanly
from store.commitlog.parallel_scan import ScanAhead
from store.commitlog.reader.log_batches import LogBatches
from store.commitlog.scanner import LogRange
from store.config import StoreConfig
from store.errors import (
    ConfigError,
    DamageError,
    LostDataError,
    UnknownTopicError,
    shown,
)
from store.output.progress import LostRange
from store.output.resolve_config import open_store_config
from streaming.sources.known_topics import is_listed

_RANGE_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ExportResult:
    """The result of an export: the range of the log, and what was written.

    ``without_messages`` are the requested topics without a message in the range, ``lost`` the parts
    that could not be read and were left out.
    """

    begin_offset: int
    end_offset: int
    files: int
    bytes: int
    messages: int
    without_messages: tuple[str, ...]
    lost: tuple[LostRange, ...] = ()


@contextmanager
def open_export(store_root: Path, to: Path, options: ExportOptions) -> Iterator[ExportJob]:
    """Plan an export; lock its directory while the context lasts.

    ``to`` must be new or empty except to append. After an error, and if there is no message to
    export, it is unchanged. Raises ConfigError, UnknownTopicError, DamageError, OutputInUseError,
    UnsupportedFormatError, StoreIOError.
    """
    broker = options.broker_conf, options.broker_version
    config = open_store_config(store_root, None, *broker, needs_log=True)
    not_consumed = _not_consumed(store_root, config, options)
    settings = make_settings(store_root, options, not_consumed)
    check_directory(to, append=options.append)
    refuse_inside_log(to, store_root, config)
    directory = ExportDirectory(to.absolute())
    try:
        record = check_directory(to, append=options.append)
        if record is not None and (difference := settings.difference_from(record.settings)):
            raise ConfigError(f"--append: the export in {to} has other settings: {difference}")
        if not_consumed is not None:
            not_consumed = _translated(not_consumed, store_root, config, options)
        job = ExportJob(store_root, config, options, not_consumed)
        job.plan(directory, settings, record)
        yield job
    except BaseException as e:
        directory.check_in_place(e)
        directory.roll_back()
        raise
    finally:
        directory.close()


def refuse_inside_log(to: Path, store_root: Path, config: StoreConfig) -> None:
    """Raise ConfigError for a target directory inside the commit log of a store."""
    for log in config.commit_log_paths(store_root):
        if to.resolve().is_relative_to(log.resolve()):
            raise ConfigError(f"--to {to} is inside the commit log {log}")


def _not_consumed(
    store_root: Path, config: StoreConfig, options: ExportOptions
) -> NotConsumed | None:
    """Read what the group of ``not_consumed_by`` has committed, None without that option."""
    group = options.not_consumed_by
    if group is None:
        return None
    if options.append:
        raise ConfigError("--not-consumed-by and --append: the offsets of a group move; omit one")
    return read_not_consumed(store_root, group, options.topics, enable_lmq=config.enable_lmq)


def _translated(
    not_consumed: NotConsumed, store_root: Path, config: StoreConfig, options: ExportOptions
) -> NotConsumed:
    sources = QueueSources(
        store_root,
        options.output,
        options.broker_conf,
        options.broker_version,
        is_log_whole=options.fail_on_data_loss and options.from_time is None,
    )
    return not_consumed.translated(sources, _open_log(store_root, config).stretches)


def _open_log(store_root: Path, config: StoreConfig) -> LogBatches:
    return LogBatches(
        store_root,
        config,
        is_clean=lambda: was_closed_cleanly(store_root),
        range_bytes=_RANGE_BYTES,
    )


class ExportJob:
    """One export into a locked directory: first planned, then run."""

    def __init__(
        self,
        store_root: Path,
        config: StoreConfig,
        options: ExportOptions,
        not_consumed: NotConsumed | None = None,
    ) -> None:
        self._store_root, self._config, self._options = store_root, config, options
        self.not_consumed = not_consumed
        self._batches = _open_log(store_root, config)
        self._directory: ExportDirectory
        self._record: ExportRecord
        self.ranges: tuple[LogRange, ...] = ()

    @property
    def log(self) -> CommitLog:
        """The commit log that is exported."""
        return self._batches.log

    def plan(
        self, directory: ExportDirectory, settings: ExportSettings, resumed: ExportRecord | None
    ) -> None:
        """Plan the ranges. Raises DamageError or LostDataError if the log cannot be resumed."""
        begin = max(self.log.min_offset(), 0)
        if resumed is not None:
            begin = self._resume_at(resumed)
        elif settings.from_time is not None:
            begin = first_stored_at(self.log, settings.from_time)
        end = self._batches.end()
        if self._options.to_time is not None:
            end = min(first_stored_at(self.log, self._options.to_time + 1), end)
        self._span = begin, max(begin, end)
        self._is_first = resumed is None or resumed.end_offset == resumed.begin_offset
        self._directory = directory
        self._record = resumed or ExportRecord(settings, begin, begin, 0, None)
        directory.begin(self._record)
        self.ranges = tuple(self._batches.ranges(*self._span))

    def _resume_at(self, record: ExportRecord) -> int:
        """Return the offset to resume at; a part that expired since the last export is lost."""
        log, end, last = self.log, record.end_offset, record.last_record
        begin = max(log.min_offset(), 0)
        if end < begin:
            if not self._options.fail_on_data_loss:
                return begin
            raise LostDataError(
                log.directories[0],
                end,
                begin,
                reason="the log expired beyond the end of the last export",
                hint="--fail-on-data-loss false exports what follows",
            )
        why = find_log_change(log, last, verb="exported")
        if why and last is not None:
            hint = "it was truncated or is another log; export it into a new directory"
            raise DamageError(log.path_of(last.offset), last.offset, why, hint)
        return end

    def run(self, report: ReportProgress | None = None) -> ExportResult:
        """Export the ranges and commit the files. Raises as ``open_export``."""
        parts = self._export(self.ranges, self._spec(), report)
        missing = self._missing_topics(parts)
        files = [file for part in parts for file in part.files]
        begin, end = self._span
        messages = sum(part.messages for part in parts)
        last = max((part.last for part in parts), default=-1)
        if messages or self._options.append:
            self._directory.commit(
                files,
                replace(
                    self._record,
                    end_offset=end,
                    messages=self._record.messages + messages,
                    last_record=self._record.last_record
                    if last < 0
                    else read_fingerprint(self.log, last),
                ),
            )
        else:
            self._directory.roll_back()
        size = sum(file.size for file in files)
        lost = tuple(lost for part in parts for lost in part.lost)
        return ExportResult(begin, end, len(files), size, messages, missing, lost)

    def _spec(self) -> FileSpec:
        """Return the specification that all tasks share.

        With ``append``, only offsets limit an export: where the clock stepped back, a message later
        than ``to_time`` that one export left out would never be exported.
        """
        settings, options = self._record.settings, self._options
        return FileSpec(
            staging=self._directory.staging,
            config=self._config,
            file_format=settings.file_format,
            compression=settings.compression,
            columns=settings.columns,
            topics=settings.topics,
            exclude_system=settings.exclude_system,
            from_time=settings.from_time,
            to_time=None if options.append else options.to_time,
            skip_damage=not options.fail_on_data_loss,
            max_body_bytes=options.max_body_bytes,
            not_consumed=self.not_consumed,
        )

    def _export(
        self, ranges: Sequence[LogRange], spec: FileSpec, report: ReportProgress | None = None
    ) -> list[ExportedPart]:
        """Export ranges in one thread per core; after a failure, start no further task."""
        done, total = 0, sum(part.end - part.begin for part in ranges)
        parts: list[ExportedPart] = []
        task = partial(export_part, spec=spec)
        tasks = ScanAhead(self._config, ranges, task, threads=os.cpu_count() or 1)
        with closing(tasks):
            for part, exported in tasks:
                parts.append(exported)
                done += part.end - part.begin
                if report is not None:
                    report(done, total)
        return parts

    def _missing_topics(self, parts: list[ExportedPart]) -> tuple[str, ...]:
        """Return the topics without messages in the range.

        Raises UnknownTopicError for topics that neither the log nor the broker's files hold. Only
        the first export into a directory checks this.
        """
        requested = set(self._record.settings.topics)
        missing = requested.difference(*(part.seen for part in parts))
        unknown = {t for t in missing if not is_listed(self._store_root, t)}
        if unknown and self._is_first and self.not_consumed is None:
            others = self._search_rest(tuple(sorted(unknown)))
            unknown = unknown.difference(*(part.seen for part in others))
            if unknown:
                raise UnknownTopicError(self._not_found_text(sorted(unknown), [*parts, *others]))
        return tuple(sorted(missing))

    def _search_rest(self, topics: tuple[str, ...]) -> list[ExportedPart]:
        """Search the log outside the exported range for topics."""
        begin, end = self._span
        log_begin, log_end = max(self.log.min_offset(), 0), self._batches.end()
        spans = [(at, stop) for at, stop in ((log_begin, begin), (end, log_end)) if at < stop]
        ranges = [part for span in spans for part in self._batches.ranges(*span)]
        spec = replace(self._spec(), staging=None, topics=topics, skip_damage=True)
        return self._export(ranges, spec)

    def _not_found_text(self, unknown: list[str], parts: list[ExportedPart]) -> str:
        texts = []
        for topic in unknown:
            similar = similar_names(
                topic, {name for p in parts for name in p.similar.get(topic, ())}
            )
            hint = f" (did you mean {any_of(similar)}?)" if similar else ""
            texts.append(f"topic {shown(topic)} is not in the log of {self._store_root}{hint}")
        return "; ".join(texts)
