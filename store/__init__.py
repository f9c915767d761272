"""The files of a RocketMQ store and the reads on them, ``MessageStore``; no Spark, no command line.

Importing this package is cheap: it loads only ``store.errors``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from store.errors import StoreError

if TYPE_CHECKING:
    from store.commitlog.record import Message
    from store.consumequeue.time_search import Boundary
    from store.reads.message_filter import MessageFilter
    from store.reads.message_store import MessageStore

__all__ = ["Boundary", "Message", "MessageFilter", "MessageStore", "StoreError"]

_MODULES = {
    "Boundary": "consumequeue.time_search",
    "Message": "commitlog.record",
    "MessageFilter": "reads.message_filter",
    "MessageStore": "reads.message_store",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
