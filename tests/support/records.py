"""Decoded records, and the records of a log."""

from collections.abc import Iterator, Mapping
from dataclasses import fields

from store.commitlog.record import (
    Message,
    NewMessage,
    decode_message,
)
from store.errors import DamageError

PLAIN_FIELDS = (
    "topic", "queue_id", "queue_offset", "commit_log_offset", "sys_flag", "flag",
    "born_timestamp", "store_timestamp", "reconsume_times", "prepared_transaction_offset",
)  # fmt: skip


def as_new(message: Message) -> NewMessage:
    """Return a stored message as it was before it was appended."""
    names = [field.name for field in fields(NewMessage) if field.name != "body"]
    return NewMessage(body=message.raw_body, **{name: getattr(message, name) for name in names})


def chain(files: Mapping[int, bytes | memoryview], *, splits: bool) -> Iterator[Message]:
    """Decode the records of a log, up to its end or a torn record."""
    for base, content in files.items():
        at = 0
        try:
            while True:
                options = {"offset": base + at, "splits_properties": splits}
                message, at = decode_message(content, at, **options)  # type: ignore[arg-type]
                yield message
        except DamageError as e:
            if "blank record" not in e.reason:
                return
