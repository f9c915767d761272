"""The application ``reput``: command line, web console and export; not what they read and run.

Its public names are those of the packages below it, imported at first use:

* reads: ``MessageStore``, ``Boundary``, ``Message``, ``MessageFilter``, ``StoreError``;
* Spark: ``CommitLogDataSource``, ``build_session``, ``register_source``, ``start_dispatch``,
  ``start_mirror``, ``MirrorOptions``, ``query_error``, ``stop_query``, ``BacklogListener``,
  ``KafkaArrivals``, ``client_options``.

Importing this package is cheap: it imports no PySpark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import store
import streaming

if TYPE_CHECKING:
    from store import Boundary, Message, MessageFilter, MessageStore, StoreError
    from streaming import (
        BacklogListener,
        CommitLogDataSource,
        KafkaArrivals,
        MirrorOptions,
        build_session,
        client_options,
        query_error,
        register_source,
        start_dispatch,
        start_mirror,
        stop_query,
    )

__all__ = [
    "BacklogListener",
    "Boundary",
    "CommitLogDataSource",
    "KafkaArrivals",
    "Message",
    "MessageFilter",
    "MessageStore",
    "MirrorOptions",
    "StoreError",
    "build_session",
    "client_options",
    "query_error",
    "register_source",
    "start_dispatch",
    "start_mirror",
    "stop_query",
]


def __getattr__(name: str) -> Any:
    for package in (store, streaming):
        if name in package.__all__:
            return getattr(package, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
