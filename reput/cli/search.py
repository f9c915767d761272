"""``reput search`` and ``tail``: messages from the log alone, without queues, index or a JVM."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from reput.cli.lines import say
from reput.cli.options import (
    BrokerOptions,
    Json,
    MaxBodyBytes,
    Store,
    StoredFrom,
    StoredTo,
    parse_span,
)
from reput.cli.show import (
    INTERRUPTED,
    NOT_FOUND,
    exit_not_found,
    message_printer,
    progress_bar,
    raise_damage,
)
from reput.cli.stores import Failures, LogStores, NamedStore, log_stores, opened_stores
from store.errors import ConfigError, shown
from store.printable import size_text
from streaming.sources.option_values import TIME_FORMS, parse_time

if TYPE_CHECKING:
    from store import Message
    from store.commitlog.commit_log import ReportProgress
    from store.reads.message_filter import MessageFilter
    from store.reads.message_search import LogSearch

_TAIL_COUNT = 10


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """Which messages to find: every condition must hold."""

    topic: Annotated[list[str] | None, typer.Option(help="Only this topic (repeatable).")] = None
    queue_id: Annotated[int | None, typer.Option("--queue", help="Only this queue id.", min=0)] = (
        None
    )
    from_time: StoredFrom = None
    to_time: StoredTo = None
    key: Annotated[
        list[str] | None, typer.Option(help="A key or unique key (repeatable: any of them).")
    ] = None
    tag: Annotated[str, typer.Option(help="Only these tags, such as 'TagA || TagB'.")] = "*"
    properties: Annotated[
        list[str] | None,
        typer.Option(
            "--property",
            metavar="NAME=VALUE",
            help="A property with this value (repeatable: all of them).",
        ),
    ] = None
    body: Annotated[
        str | None,
        typer.Option(
            metavar="REGEX",
            help="A regular expression (RE2) found in the decompressed body; (?i) ignores case.",
        ),
    ] = None
    newest_first: Annotated[
        bool, typer.Option("--newest-first", help="Search from the end of the log.")
    ] = False
    max_count: Annotated[
        int | None, typer.Option("--max", help="Stop after this many messages.", min=1)
    ] = None
    max_body_bytes: MaxBodyBytes = None


@dataclass(frozen=True, slots=True)
class TailOptions:
    """Which messages to show."""

    topic: Annotated[list[str], typer.Option(help="The topic (repeatable).")]
    count: Annotated[
        int | None,
        typer.Option(
            "-n",
            "--lines",
            help=f"The number of newest messages; {_TAIL_COUNT} by default, with --since all.",
            min=0,
        ),
    ] = None
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Show new messages until interrupted.")
    ] = False
    tags: Annotated[str, typer.Option(help="Only these tags, such as 'TagA || TagB'.")] = "*"
    since: Annotated[str | None, typer.Option(help=f"Stored at or after: {TIME_FORMS}.")] = None
    max_body_bytes: MaxBodyBytes = None


def search(
    store: LogStores, wanted: SearchOptions, broker: BrokerOptions, as_json: Json = False
) -> None:
    """Search the log by key, tag, property, body, time and topic.

    Reads the log alone: it also finds messages that are in no queue. Prints each message when it
    is found, those of several stores in the order of their store times; Ctrl-C ends the search.
    Exits with 1 if there is none, with 130 if there was none before Ctrl-C, with 3 if a part of a
    log is damaged: the rest is searched.
    """
    message_filter, stores, failures = (
        _search_filter(wanted),
        log_stores(store, broker.broker_conf),
        Failures(),
    )
    with (
        _opened_searches(stores, message_filter, broker, wanted.max_body_bytes, failures) as jobs,
        progress_bar("searching", as_json=as_json) as show,
    ):
        progress, count = _Progress(show), 0
        print_message = message_printer(as_json=as_json, has_broker=len(stores) > 1)
        found = [
            _messages(name, job, failures, wanted.newest_first, progress.of(name))
            for name, job in jobs.items()
        ]
        for message, name in _merged(found, newest_first=wanted.newest_first):
            print_message(message, name)
            count += 1
            if count == wanted.max_count:
                break
        is_stopped = any(job.stop.is_set() for job in jobs.values())
        if is_stopped:
            done, total = map(size_text, progress.searched())
            say(f"interrupted: {done} of {total} were searched")
        for name, job in jobs.items():
            with failures.of(name):
                raise_damage(job.damages)
        failures.exit()
        if is_stopped and not count:
            raise typer.Exit(INTERRUPTED)
        if not count:
            exit_not_found(NOT_FOUND, "no message matches", {}, as_json=as_json)


Found = tuple["Message", str]  # a message and its broker


def _messages(
    name: str, job: LogSearch, failures: Failures, newest_first: bool, report: ReportProgress
) -> Iterator[Found]:
    """Yield the matches in one store, until it fails."""
    with failures.of(name):
        for message in job.messages(newest_first=newest_first, report=report):
            yield message, name


def _merged(found: Sequence[Iterator[Found]], *, newest_first: bool) -> Iterator[Found]:
    """Merge by store time the matches of several stores, each in the order of its log."""
    if len(found) == 1:
        return found[0]
    return heapq.merge(*found, key=lambda row: row[0].store_timestamp, reverse=newest_first)


class _Progress:
    """The bytes searched in all stores, and those to search in all, as far as known."""

    def __init__(self, show: ReportProgress | None) -> None:
        self._show = show
        self._parts: dict[str, tuple[int, int]] = {}

    def of(self, name: str) -> ReportProgress:
        """Return the function that takes the progress in one store."""

        def report(done: int, total: int) -> None:
            self._parts[name] = done, total
            if self._show is not None:
                self._show(*self.searched())

        return report

    def searched(self) -> tuple[int, int]:
        """Return the bytes searched, and those to search."""
        parts = self._parts.values()
        return sum(done for done, _ in parts), sum(total for _, total in parts)


def tail(store: Store, wanted: TailOptions, broker: BrokerOptions, as_json: Json = False) -> None:
    """Show the newest messages of topics, and follow new ones.

    Reads the log alone: messages of all queues, in the order of the log. Without --follow, exits
    with 1 if there is none.
    """
    from reput.cli.long_running import POLL_SECONDS
    from store.reads.message_filter import MessageFilter

    since = parse_time("--since", wanted.since)
    message_filter = MessageFilter(
        topics=frozenset(wanted.topic), tags=wanted.tags, from_time=since
    )
    stores, failures = [NamedStore("", store)], Failures()
    with _opened_searches(
        stores, message_filter, broker, wanted.max_body_bytes, failures
    ) as searches:
        job = searches[""]
        print_message = message_printer(as_json=as_json)
        has_any = False
        with progress_bar("searching", as_json=as_json) as show:
            for message in _newest(job, wanted, show):
                print_message(message, "")
                has_any = True
        if not wanted.follow:
            raise_damage(job.damages)
        if wanted.follow:
            for message in job.follow(job.end, POLL_SECONDS):
                print_message(message, "")
        elif not has_any and not job.stop.is_set():
            topics = " or ".join(map(shown, wanted.topic))
            exit_not_found(NOT_FOUND, f"no message of topic {topics} matches", {}, as_json=as_json)


def _newest(job: LogSearch, wanted: TailOptions, show: ReportProgress | None) -> Iterator[Message]:
    """Return the newest matches in log order. Afterwards, the job's end is that of the log."""
    if wanted.count is None and wanted.since is not None:
        return job.messages(report=show)
    count = _TAIL_COUNT if wanted.count is None else wanted.count
    newest = job.messages(newest_first=True, report=show)
    if not count:
        next(newest, None)  # the end is known once the search has begun
    return reversed([m for _, m in zip(range(count), newest, strict=False)])


@contextmanager
def _opened_searches(
    stores: Sequence[NamedStore],
    wanted: MessageFilter,
    broker: BrokerOptions,
    max_body_bytes: str | None,
    failures: Failures,
) -> Iterator[dict[str, LogSearch]]:
    """Open the logs of stores for a search that SIGINT and SIGTERM end; yield them by name."""
    from reput.cli.long_running import stop_signals
    from store.reads.message_search import LogSearch

    with (
        opened_stores(stores, broker, failures, max_body_bytes) as opened,
        stop_signals() as stop,
    ):
        searches: dict[str, LogSearch] = {}
        for name, s in opened.items():
            with failures.of(name):
                searches[name] = LogSearch(
                    s.store_root,
                    s.config,
                    wanted,
                    max_body_bytes=s.max_body_bytes,
                    stop=stop,
                    skip_damage=True,
                )
        yield searches


def _search_filter(wanted: SearchOptions) -> MessageFilter:
    """Parse the conditions. Raises ConfigError."""
    from store.reads.message_filter import MessageFilter

    begin, end = parse_span(wanted.from_time, wanted.to_time)
    properties = {}
    for text in wanted.properties or ():
        name, separator, value = text.partition("=")
        if not name or not separator or not value:
            raise ConfigError(f"--property {shown(text)} is not NAME=VALUE")
        properties[name] = value
    return MessageFilter(
        topics=frozenset(wanted.topic or ()),
        queue_id=wanted.queue_id,
        from_time=begin,
        to_time=end,
        keys=frozenset(wanted.key or ()),
        tags=wanted.tag,
        properties=properties,
        body=wanted.body,
    )
