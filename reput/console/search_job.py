"""A search of one client: it runs in a thread while the client reads what it finds.

The thread pauses while ``_PENDING_BYTES`` wait to be sent, so a slow client holds up its own search
only. The search ends when its client disconnects, also while it finds nothing. Few searches run at
a time, and fewer of one client.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from inspect import GEN_SUSPENDED, getgeneratorstate
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from starlette.exceptions import HTTPException
from starlette.requests import Request

from reput.console.answers.messages import Encode
from reput.console.brokers import Broker
from reput.console.parameters import ParameterError, SearchQuery
from reput.console.security import ConsoleSettings
from store.commitlog.record import Message

if TYPE_CHECKING:
    from store.commitlog.scanner import Damage
    from store.reads.message_search import LogSearch

_PENDING_BYTES = 256 * 1024
_TICK_SECONDS = 0.05
_TAIL_THREADS = 2  # for the newest messages of tails that begin
_NEWEST_SECONDS, _NEWEST_SECONDS_MIN = 3.0, 0.1  # a tail whose conditions few meet begins after it
COMPLETE, MAX, LIMIT = "complete", "max", "limit"  # why a search ended


def client_of(request: Request) -> str:
    """Return the address of a client."""
    return request.client.host if request.client is not None else ""


class SearchSlots:
    """The threads of searches, and how many run for each client."""

    def __init__(self, settings: ConsoleSettings) -> None:
        self._settings = settings
        self._guard = threading.Lock()
        self._running: Counter[str] = Counter()
        self._jobs: set[SearchJob] = set()
        self._pool = ThreadPoolExecutor(settings.searches_max + _TAIL_THREADS, "reput-search")
        self._tail_starts = asyncio.Semaphore(_TAIL_THREADS)
        self._tail_turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._beginning: Counter[str] = Counter()

    def take(self, client: str) -> None:
        """Take the slot of a search. Raises HTTPException (429)."""
        limit, client_limit = self._settings.searches_max, self._settings.client_searches_max
        with self._guard:
            if self._running.total() >= limit:
                text = f"{limit} searches are running, which is the limit; stop one, or wait"
                raise HTTPException(429, text)
            if self._running[client] >= client_limit:
                text = f"{client_limit} searches of this client are running, which is the limit"
                raise HTTPException(429, text)
            self._running[client] += 1

    def release(self, client: str) -> None:
        """Return the slot of a search."""
        with self._guard:
            self._running[client] -= 1
            self._running += Counter()  # forgets clients without a search

    @asynccontextmanager
    async def tail_start(self, client: str) -> AsyncGenerator[float]:
        """Wait for a thread that finds the newest messages of a tail; yield for how many seconds.

        A client has one thread at a time, and less time for each tail the more of its tails begin.
        So they hold up the tails of other clients by one search, and its own not for long.
        """
        turn = self._tail_turns.setdefault(client, asyncio.Lock())
        self._beginning[client] += 1
        try:
            async with turn, self._tail_starts:
                yield max(_NEWEST_SECONDS / self._beginning[client], _NEWEST_SECONDS_MIN)
        finally:
            self._beginning[client] -= 1
            self._beginning += Counter()  # forgets clients of which none begins

    @property
    def running(self) -> int:
        """The number of searches that hold a slot."""
        return self._running.total()

    def silent_seconds(self) -> float:
        """Return for how long all slots have held silent searches; 0 if one does not."""
        with self._guard:
            silent = sorted((job.silent_seconds() for job in self._jobs), reverse=True)
        count = self._settings.searches_max
        return silent[count - 1] if len(silent) >= count else 0.0

    def submit(self, job: SearchJob) -> asyncio.Future[None]:
        """Run a search until it pauses or ends."""
        with self._guard:
            self._jobs.add(job)
        return asyncio.wrap_future(self._pool.submit(job.run))

    def forget(self, job: SearchJob) -> None:
        """Remove a search that has ended."""
        with self._guard:
            self._jobs.discard(job)

    def close(self) -> None:
        """Stop all searches."""
        with self._guard:
            jobs = list(self._jobs)
        for job in jobs:
            job.finish()
        self._pool.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True, slots=True)
class Limits:
    """When a search ends although there may be more: at a number of bytes of text, or of seconds.

    ``shortened`` encodes a message that exceeds the bytes alone.
    """

    text_bytes: int | None = None
    seconds: float | None = None
    shortened: Encode | None = None


class _Stop(threading.Event):
    """An event that is set after some seconds too, so that no long match outlasts them.

    ``asked_at`` is when the search last asked whether it is set, which it does each second or so,
    however long a match takes.
    """

    def __init__(self, seconds: float | None) -> None:
        super().__init__()
        self.asked_at = time.monotonic()
        self._at = math.inf if seconds is None else self.asked_at + seconds

    def is_set(self) -> bool:
        self.asked_at = time.monotonic()
        return super().is_set() or self.asked_at > self._at


class SearchJob:
    """One search. ``finish`` must be called once its client is gone or has everything.

    ``reason`` is why the search ended, "" while it runs; ``next`` is where to resume, None if there
    is nothing more.
    """

    def __init__(
        self, broker: Broker, query: SearchQuery, encode: Encode, limits: Limits = Limits()
    ) -> None:
        self.query = query
        self.found = 0
        self.searched_bytes = self.total_bytes = 0
        self.reason = ""
        self.error: Exception | None = None
        self.damages: list[Damage] = []  # that the search has passed
        self.stop = _Stop(limits.seconds)
        self._broker = broker
        self._encode = encode
        self._limits = limits
        self._began = time.monotonic()
        self._guard = threading.Lock()
        self._texts: list[str] = []
        self._pending = self._text_bytes = 0
        self._last: Message | None = None
        self._span = (0, 0)
        self._is_running = self._is_finished = self._is_closed = False
        self._on_close: list[Callable[[], None]] = []
        self._search = self._run()

    # --- in the event loop -----------------------------------------------------------------------

    async def texts(self, slots: SearchSlots) -> AsyncGenerator[list[str]]:
        """Yield what has been found, at least every tick. Raises the error of the search."""
        self._on_close.append(lambda: slots.forget(self))
        while not self.reason and self.error is None:
            run = slots.submit(self)
            while not run.done():
                await asyncio.wait({run}, timeout=_TICK_SECONDS)
                yield self._take()
        yield self._take()
        if self.error is not None:
            raise self.error

    def on_close(self, function: Callable[[], None]) -> None:
        """Call a function when the search has ended and holds nothing any more."""
        self._on_close.append(function)

    def finish(self) -> None:
        """End the search: at once if it is complete, else in a thread.

        The end of a search that pauses waits for the threads of its scan; the event loop must not.
        """
        self.stop.set()
        with self._guard:
            self.stop.asked_at = time.monotonic()
            self._is_finished = True
            is_idle = not self._is_running
        if not is_idle:
            return
        if getgeneratorstate(self._search) == GEN_SUSPENDED:
            threading.Thread(target=self._close, name="reput-close", daemon=True).start()
        else:
            self._close()

    def silent_seconds(self) -> float:
        """Return for how long a search that runs or ends has not asked whether to stop.

        One that waits for its client is not silent.
        """
        is_busy = self._is_running or (self._is_finished and not self._is_closed)
        return time.monotonic() - self.stop.asked_at if is_busy else 0.0

    @property
    def elapsed_ms(self) -> int:
        """The time since the search was begun."""
        return int((time.monotonic() - self._began) * 1000)

    @property
    def next(self) -> int | None:
        """The physical offset from which another search resumes, None if this one is complete."""
        if self.reason in ("", COMPLETE):
            return None
        last, (begin, end) = self._last, self._span
        if self.query.is_newest_first:
            at = end - self.searched_bytes
            return at if last is None else min(at, last.commit_log_offset)
        at = begin + self.searched_bytes
        return at if last is None else max(at, last.commit_log_offset + last.size)

    def progress(self) -> dict[str, Any]:
        """Return how far the search is."""
        return {
            "searched_bytes": self.searched_bytes,
            "total_bytes": self.total_bytes,
            "found": self.found,
            "elapsed_ms": self.elapsed_ms,
        }

    def _take(self) -> list[str]:
        with self._guard:
            texts, self._texts, self._pending = self._texts, [], 0
        return texts

    # --- in a thread -----------------------------------------------------------------------------

    def run(self) -> None:
        """Search until enough is waiting for the client, or to the end. Raises nothing."""
        with self._guard:
            if self._is_finished:
                return
            self.stop.asked_at = time.monotonic()
            self._is_running = True
        try:
            self.reason = next(self._search, self.reason or LIMIT)
            if self.reason:
                self._search.close()
        except Exception as e:  # noqa: BLE001 - the client gets it
            self.error = e
        with self._guard:
            self._is_running = False
            is_finished = self._is_finished
        if is_finished:
            self._close()

    def _run(self) -> Generator[str]:
        """Yield "" when the search pauses, then why it ended."""
        search = self._open()
        self.damages = search.damages
        found = search.messages(newest_first=self.query.is_newest_first, report=self._report)
        with closing(found):
            for message in found:
                if not self.query.matches(message):
                    continue
                self._span = search.span
                texts = self._texts_of(message)
                if texts is None:
                    yield LIMIT
                    return
                for text in texts:
                    if self._pending >= _PENDING_BYTES:
                        yield ""
                    self._put(text)
                reason = self._add(message)
                if reason or self._pending >= _PENDING_BYTES:
                    yield reason
            self._span = search.span
        self._broker.check_log()
        for damage in self.damages:
            self._broker.note_damage(damage.passed())
        yield LIMIT if self.stop.is_set() else COMPLETE

    def _open(self) -> LogSearch:
        from store.reads.message_search import LogSearch  # noqa: PLC0415 - loads the kernels

        broker = self._broker
        if self.query.start is not None:
            self.query = _started(self.query, broker)
        return LogSearch(
            broker.store_root,
            broker.config,
            self.query.wanted,
            max_body_bytes=broker.settings.max_body_bytes,
            stop=self.stop,
            skip_damage=True,
        )

    def _texts_of(self, message: Message) -> Iterable[str] | None:
        """Return the texts of a message, None if they exceed what is left of the limit."""
        limit = self._limits.text_bytes
        if limit is None:
            return self._encode(message)
        texts, left = [], limit - self._text_bytes
        for text in self._encode(message):
            texts.append(text)
            left -= len(text)
            if left < 0:
                shortened = self._limits.shortened
                return None if self.found or shortened is None else shortened(message)
        return texts

    def _put(self, text: str) -> None:
        with self._guard:
            self._texts.append(text)
            self._pending += len(text)
        self._text_bytes += len(text)

    def _add(self, message: Message) -> str:
        """Count a message and the log up to it; return why the search ends with it, or "".

        The scan reports whole stretches only.
        """
        self._last = message
        self.found += 1
        begin, end = self._span
        at = message.commit_log_offset
        done = end - at if self.query.is_newest_first else at + message.size - begin
        self.searched_bytes = max(self.searched_bytes, min(done, self.total_bytes))
        return MAX if self.found == self.query.max_count else ""

    def _report(self, done: int, total: int) -> None:
        self.searched_bytes, self.total_bytes = done, total

    def _close(self) -> None:
        with self._guard:
            if self._is_closed:
                return
            self._is_closed = True
        self._search.close()
        for function in self._on_close:
            function()


def _started(query: SearchQuery, broker: Broker) -> SearchQuery:
    """Return the query with the record of its place in a queue as the start."""
    assert query.start is not None
    topic, queue_id, offset = query.start
    with broker.queues() as store:
        result = store.get_message(topic, queue_id, offset, 1)
    if not result.messages:
        held = f"the queue holds {result.min_offset} to {result.max_offset}, exclusive"
        raise ParameterError("queue_offset", f"{result.status}: {held}")
    message = result.messages[0]
    return query.starting_at(message.commit_log_offset, message.size)
