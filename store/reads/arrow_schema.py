"""The columns in which messages are shown to people, as Arrow types; and rows by their topics.

Every column may be null, as in a schema that is written down as text. In truth null stand only
``tags``, ``keys`` and ``uniq_key`` of a message without that property, and a timestamp whose
milliseconds do not fit the type (the producer's clock is not checked by anybody).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from store.commitlog.dispatch_request import DispatchRequests
from store.errors import ConfigError, shown

_TIMESTAMP = pa.timestamp("us", tz="UTC")

# Name and type of each column, in order.
MESSAGE_FIELDS: Mapping[str, pa.DataType] = MappingProxyType(
    {
        "topic": pa.string(),
        "queue_id": pa.int32(),
        "queue_offset": pa.int64(),
        "commit_log_offset": pa.int64(),
        "size": pa.int32(),
        "tags": pa.string(),
        "keys": pa.string(),
        "uniq_key": pa.string(),
        "body": pa.binary(),  # decompressed
        "properties": pa.map_(pa.string(), pa.string()),
        "store_timestamp": _TIMESTAMP,
        "born_timestamp": _TIMESTAMP,
        "born_host": pa.string(),  # address:port
        "store_host": pa.string(),
        "reconsume_times": pa.int32(),
        "flag": pa.int32(),
        "sys_flag": pa.int32(),  # as stored: a decompressed body does not clear its bit
        "tags_code": pa.int64(),
        "prepared_transaction_offset": pa.int64(),
        "body_crc": pa.int32(),
    }
)


def message_schema(wanted: Sequence[str] = tuple(MESSAGE_FIELDS)) -> pa.Schema:
    """Return the Arrow schema of the wanted columns, in their order. Raises ConfigError."""
    for name in wanted:
        if name not in MESSAGE_FIELDS:
            known = ", ".join(MESSAGE_FIELDS)
            raise ConfigError(f"a message has no column {shown(name)}; the columns are {known}")
    return pa.schema([pa.field(name, MESSAGE_FIELDS[name]) for name in wanted])


def rows_of_topics(
    requests: DispatchRequests, predicate: Callable[[str], bool]
) -> NDArray[np.bool_]:
    """Tell of each record whether its topic is wanted; a topic is asked for once."""
    answers = {topic: predicate(topic) for topic in dict.fromkeys(requests.topics)}
    of_queue = np.array([answers[topic] for topic in requests.topics], np.bool_)
    chosen: NDArray[np.bool_] = of_queue[requests.queue]
    return chosen
