"""How the sources behave in Spark's Python workers: errors of one line, and a quiet early end.

A worker formats an error that reaches it, with its traceback unless ``SPARK_HIDE_TRACEBACK`` is
set, sends it to Spark and ends. A StoreError is complete without a traceback; any other error is a
bug and keeps it.

Spark closes a worker's socket when it needs no more rows of a task (``LIMIT``) or cancels it. The
worker would print tracebacks about the broken pipe; here it ends without one, as a command in a
pipeline does.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar

from store.errors import StoreError
from streaming.sources.options import OPTION_NAMES

# Spark's entry points to a data source and its readers.
_CALLED = (
    "schema", "reader", "streamReader", "pushFilters", "partitions", "initialOffset",
    "latestOffset", "getDefaultReadLimit", "reportLatestOffset", "prepareForTriggerAvailableNow",
    "commit",
)  # fmt: skip
_READ = "read"
# Tells a worker, or the daemon whose forks are workers, how to reach Spark.
_SET_FOR_WORKERS = {
    "PYTHON_WORKER_FACTORY_SECRET", "PYTHON_WORKER_FACTORY_SOCK_DIR",
    "PYTHON_WORKER_FACTORY_SOCK_PATH",
}  # fmt: skip
_HIDE_TRACEBACK = "SPARK_HIDE_TRACEBACK"
_FLAGS = {
    "--" + re.sub("[A-Z]", lambda m: "-" + m[0].lower(), name): name
    for name in OPTION_NAMES
    if not name.islower()
}

_Class = TypeVar("_Class", bound=type)


def called_by_spark(source: _Class) -> _Class:
    """Decorate a data source or a reader: what Spark calls ends as this module describes."""
    for name in _CALLED:
        if name in vars(source):
            setattr(source, name, _with_plain_errors(vars(source)[name]))
    if _READ in vars(source):
        setattr(source, _READ, _as_worker(vars(source)[_READ]))
    return source


def in_option_terms(text: str) -> str:
    """Return an error's text with the source's options in place of the commands' flags."""
    for flag, name in _FLAGS.items():
        # An alternative to the option itself goes: "--some-flag VALUE (reput …) or someFlag".
        text = re.sub(
            rf"{flag}(?: (?:true|false))?(?: \(reput [^)]*\))?(?:,| or) (?=(?:the option )?{name})",
            "",
            text,
        )
        text = re.sub(rf"{flag} (true|false)\b", rf"{name}=\1", text)
        text = re.sub(rf"{flag}(?![\w-])", name, text)
    return text


def is_spark_worker() -> bool:
    """Return whether this process is one of Spark's Python workers."""
    return not _SET_FOR_WORKERS.isdisjoint(os.environ)


def _with_plain_errors(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        with _plain_errors():
            return method(*args, **kwargs)

    return call


def _as_worker(read: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    @wraps(read)
    def iterate(*args: Any, **kwargs: Any) -> Iterator[Any]:
        with _plain_errors(), _quiet_end():
            yield from read(*args, **kwargs)

    return iterate


@contextmanager
def _plain_errors() -> Generator[None]:
    """In a worker, raise a StoreError in the source's terms, and let Spark show its line alone."""
    try:
        yield
    except StoreError as e:
        if not is_spark_worker():
            raise
        os.environ[_HIDE_TRACEBACK] = "1"  # this process ends with the error
        e.args = tuple(in_option_terms(a) if isinstance(a, str) else a for a in e.args)
        raise e from None


@contextmanager
def _quiet_end() -> Generator[None]:
    """In a worker, let a write to a socket that Spark has closed end the process."""
    if not is_spark_worker() or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGPIPE, before)  # a whole read: Spark may use the process again
