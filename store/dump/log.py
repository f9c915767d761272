"""A commit log file as rows, record by record; after damage, from the next valid record.

The acceptance rule is the usual one: ``store.commitlog.commit_log`` decodes a record, the kernels
of the scan find the next one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from store import layout
from store.commitlog.commit_log import decode_in_file
from store.commitlog.record import Message
from store.dump.rows import NOTE, Meanings, Row, Sections, Source
from store.errors import DamageError
from store.io.mapped_file import MappedFile

LOG_MEANINGS: Meanings = {
    "record": {
        "size": "bytes of the whole record, this field included",
        "magic": "version of the record: V1, or V2 (topic length in two bytes, since 5.1.0)",
        "body_crc": "CRC-32 of the body without its highest bit, 0 if it is empty",
        "queue_id": "queue of the topic",
        "flag": "set by the producer, ignored by brokers",
        "queue_offset": "the message's own queue offset (0 for PREPARED and ROLLBACK)",
        "commit_log_offset": "offset of the record in the log; must equal its position",
        "sys_flag": "flag bits of the record",
        "sys_flags": "names of the flag bits",
        "born_timestamp": "when the producer sent it",
        "born_host": "address and port of the producer",
        "store_timestamp": "when the broker stored it",
        "store_host": "address and port of the broker that stored it",
        "reconsume_times": "how often consumers sent it back",
        "prepared_transaction_offset": "of COMMIT and ROLLBACK: offset of the PREPARED message",
        "body_at": "position of the body in the file",
        "body_length": "bytes of the body as stored, possibly compressed",
        "body": "as the producer sent it (decompressed)",
        "topic_at": "position of the topic in the file",
        "topic": "topic",
        "properties_at": "position of the properties in the file",
        "tags": "property TAGS: what consumers filter by; its hash is the tags code",
        "keys": "property KEYS: indexed, between single spaces",
        "uniq_key": "property UNIQ_KEY: the client's message id, indexed",
        "properties": "all names and values, as this broker version parses them",
        "note": NOTE,
    },
    "blank": {
        "offset": "offset of the blank in the log",
        "size": "the rest of the file; the log continues in the next file",
        "note": NOTE,
    },
}
_MAGIC_NAMES = {layout.MAGIC_V1: "V1", layout.MAGIC_V2: "V2"}
_TRANSACTIONS = {
    layout.SYS_PREPARED: "PREPARED",
    layout.SYS_COMMIT: "COMMIT",
    layout.SYS_ROLLBACK: "ROLLBACK",
}
_COMPRESSIONS = {
    0: "zlib",
    layout.COMPRESSION_LZ4: "lz4",
    layout.COMPRESSION_ZSTD: "zstd",
    layout.COMPRESSION_ZLIB: "zlib",
}
_BITS = (
    (layout.SYS_MULTI_TAGS, "multi tags"),
    (layout.SYS_BORN_HOST_V6, "born host IPv6"),
    (layout.SYS_STORE_HOST_V6, "store host IPv6"),
    (layout.SYS_INNER_BATCH, "inner batch"),
)
_KNOWN_BITS = layout.SYS_COMPRESSED | layout.SYS_COMPRESSION_TYPE | layout.SYS_TRANSACTION


def dump_commit_log(source: Source) -> Sections:
    """Return the records of a file, its blank, and its damage."""
    return (_records(source),)


def _records(source: Source) -> Iterator[Row]:
    view, at = source.view, source.start
    file = MappedFile(source.path, source.base, len(view), _view=view)
    while at < len(view):
        if _is_blank(source, at):
            yield _blank_row(source, at)
            return
        try:
            message = decode_in_file(file, source.base + at, source.config)
        except DamageError as e:
            if not view[at : at + layout.BLANK_SIZE].any() and not view[at:].any():
                yield source.end(at, "zeros: nothing has been written from here on")
                return
            found = _find_record(source, at + 1)
            yield source.damage(at, e.reason, found)
            if found is None:
                return
            at = found
        else:
            yield Row("record", at, _record_fields(source, message, at))
            at += message.size
    yield source.damage(at, "the file ends without a blank record", None)


def first_offset(source: Source) -> int | None:
    """Return the file's first offset in the log by its first record, None without a record."""
    head = source.view[: layout.RECORD_HEAD.itemsize]
    if len(head) < layout.RECORD_HEAD.itemsize:
        return None
    record = head.view(layout.RECORD_HEAD)[0]
    return int(record["physical_offset"]) if int(record["magic"]) in _MAGIC_NAMES else None


def sys_flag_names(sys_flag: int) -> list[str]:
    """Return the names of the bits set in a system flag."""
    names = []
    if sys_flag & layout.SYS_COMPRESSED:
        kind = _COMPRESSIONS.get(sys_flag & layout.SYS_COMPRESSION_TYPE, "of an unknown type")
        names.append(f"compressed {kind}")
    if transaction := _TRANSACTIONS.get(sys_flag & layout.SYS_TRANSACTION):
        names.append(transaction)
    names += [name for bit, name in _BITS if sys_flag & bit]
    others = sys_flag & ~sum(bit for bit, _ in _BITS) & ~_KNOWN_BITS
    return [*names, f"{others:#x}"] if others else names


def _is_blank(source: Source, at: int) -> bool:
    start = source.view[at : at + layout.BLANK_SIZE]
    if len(start) < layout.BLANK_SIZE:
        return False
    return bool(start.view(layout.BLANK_RECORD)[0]["magic"] == layout.MAGIC_BLANK)


def _blank_row(source: Source, at: int) -> Row:
    size = int(source.view[at : at + layout.BLANK_SIZE].view(layout.BLANK_RECORD)[0]["size"])
    left = len(source.view) - at
    # As for a broker, the magic alone makes it a blank record.
    note = None if size == left else f"{left} bytes remain, which should be its size"
    return Row("blank", at, {"offset": source.base + at, "size": size, "note": note})


def _find_record(source: Source, begin: int) -> int | None:
    """Return the position of the next valid record or blank, None without one."""
    from store.commitlog.scanner import scan_rules  # noqa: PLC0415 - loads the kernels
    from store.kernels.log_walk import find_record  # noqa: PLC0415 - loads the kernels

    span = (source.base, begin, len(source.view))
    found = int(find_record(source.view, span, scan_rules(source.config)))
    return found if found >= 0 else None


def _record_fields(source: Source, message: Message, at: int) -> dict[str, Any]:
    spans = message.spans
    return {
        "size": message.size,
        "magic": _MAGIC_NAMES[message.magic],
        "body_crc": message.body_crc,
        "queue_id": message.queue_id,
        "flag": message.flag,
        "queue_offset": message.queue_offset,
        "commit_log_offset": message.commit_log_offset,
        "sys_flag": message.sys_flag,
        "sys_flags": sys_flag_names(message.sys_flag),
        "born_timestamp": message.born_timestamp,
        "born_host": message.born_host,
        "store_timestamp": message.store_timestamp,
        "store_host": message.store_host,
        "reconsume_times": message.reconsume_times,
        "prepared_transaction_offset": message.prepared_transaction_offset,
        "body_at": at + spans.body_at,
        "body_length": spans.body_end - spans.body_at,
        "body": message,
        "topic_at": at + spans.topic_at,
        "topic": message.topic,
        "properties_at": at + spans.properties_at,
        "tags": message.tags,
        "keys": message.keys,
        "uniq_key": message.uniq_key,
        "properties": message.properties,
        "note": _note(source, message, at),
    }


def _note(source: Source, message: Message, at: int) -> str | None:
    """Return a note if a record may be half-written: no checksum covers its properties."""
    if message.record[-1:] != b"\0":
        return None
    from store.commitlog.scanner import scan_rules  # noqa: PLC0415 - loads the kernels
    from store.kernels.record import is_complete  # noqa: PLC0415 - loads the kernels

    if is_complete(source.view, at, source.base, scan_rules(source.config)):
        return None
    return "it ends with a zero byte and no record follows: it may be half-written"
