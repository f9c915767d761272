"""The Arrow schema of messages, and the selection of rows by topic.

Every column is nullable, as in a schema given as text. In fact only these are ever null: ``tags``,
``keys`` and ``uniq_key`` of a message without that property, a ``body`` beyond the limit where
such bodies are left out, and a timestamp whose milliseconds do not fit the type (nothing checks
the producer's clock).
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
        "sys_flag": pa.int32(),  # as stored: decompressing a body does not clear the bit
        "tags_code": pa.int64(),
        "prepared_transaction_offset": pa.int64(),
        "body_crc": pa.int32(),
    }
)


def message_schema(wanted: Sequence[str] = tuple(MESSAGE_FIELDS)) -> pa.Schema:
    """Return the Arrow schema of the wanted columns, in their order. Raises ConfigError."""
    if not wanted:
        raise ConfigError("no column is named")
    for name in wanted:
        if name not in MESSAGE_FIELDS:
            known = ", ".join(MESSAGE_FIELDS)
            raise ConfigError(f"a message has no column {shown(name)}; the columns are {known}")
    return pa.schema([pa.field(name, MESSAGE_FIELDS[name]) for name in wanted])


def rows_of_topics(
    requests: DispatchRequests, predicate: Callable[[str], bool]
) -> NDArray[np.bool_]:
    """Return for each record whether its topic is wanted; call ``predicate`` once per topic."""
    is_wanted = {topic: predicate(topic) for topic in dict.fromkeys(requests.topics)}
    of_queue = np.array([is_wanted[topic] for topic in requests.topics], np.bool_)
    of_record: NDArray[np.bool_] = of_queue[requests.queue]
    return of_record
