"""The columns of Spark's Kafka source for messages of RocketMQ (option ``columns=kafka``).

=================  ==========================================================================
``key``            the property KEYS as UTF-8, with all its keys; null without KEYS
``value``          the body, decompressed
``topic``          the topic
``partition``      the queue id
``offset``         the queue offset
``timestamp``      the born timestamp, when the producer created the message
``timestampType``  0, Kafka's CreateTime
``headers``        all properties, in stored order; null without properties, as in Spark's source
=================  ==========================================================================

A property may name a header once only: of a repeated one, the last value counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
import pyarrow as pa

from store.arrow.schema import MESSAGE_FIELDS

_TIMESTAMP = MESSAGE_FIELDS["born_timestamp"]
_HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])

KAFKA_FIELDS: Mapping[str, pa.DataType] = MappingProxyType(
    {
        "key": pa.binary(),
        "value": pa.binary(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": _TIMESTAMP,
        "timestampType": pa.int32(),
        "headers": pa.list_(pa.field("element", _HEADER)),
    }
)

# The column of a message from which each of these is made.
MESSAGE_COLUMNS: Mapping[str, str] = MappingProxyType(
    {
        "key": "keys",
        "value": "body",
        "topic": "topic",
        "partition": "queue_id",
        "offset": "queue_offset",
        "timestamp": "born_timestamp",
        "timestampType": "queue_id",  # for the number of rows
        "headers": "properties",
    }
)


def as_kafka(batch: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
    """Return the Kafka columns ``names`` of a batch that holds their MESSAGE_COLUMNS, in order."""
    columns = zip(names, batch.columns, strict=True)
    return pa.RecordBatch.from_arrays([_column(*column) for column in columns], names=list(names))


def _column(name: str, values: pa.Array) -> pa.Array:
    if name == "key":
        return values.cast(pa.binary())
    if name == "timestampType":
        return pa.array(np.zeros(len(values), np.int32))
    if name == "headers":
        return _headers(values)
    return values


def _headers(properties: pa.MapArray) -> pa.Array:
    """Return properties as an array of headers. The bytes are not copied."""
    pairs = pa.StructArray.from_arrays(
        [properties.keys, properties.items.cast(pa.binary())], fields=[*_HEADER]
    )
    offsets = properties.offsets
    has_none = np.diff(offsets.to_numpy()) == 0
    return pa.ListArray.from_arrays(
        offsets, pairs, type=KAFKA_FIELDS["headers"], mask=pa.array(has_none)
    )
