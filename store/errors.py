"""The exception tree.

::

    StoreError                    the base of every exception raised about a store
    ├── ConfigError               a malformed setting, or one that does not fit OUTPUT
    │   ├── BodyTooLargeError     a body that exceeds the limit of the read
    │   ├── NoLogError            a store without a commit log
    │   ├── NoQueuesError         a log has no queues yet
    │   ├── ProgressDeletedError  the progress of OUTPUT was deleted while a reader had it open
    │   └── SlowExpressionError   a regular expression that takes too long
    ├── DamageError               bytes that break the format: path, offset, reason
    │   ├── LostDataError         a range of the log that is lost: begin, end
    │   └── VanishedError         bytes that a mapped file lost while they were read
    ├── OutputInUseError          another owner holds the lock of OUTPUT
    │   └── MirrorInUseError      another mirror of the same name is running
    ├── UnknownTopicError         a topic that the store does not hold
    ├── UnsupportedFormatError    a format this project does not read
    ├── StoreIOError              the operating system refused an action: path, action, errno
    ├── IllegalMessageError       a message that no record can hold (in ``store.commitlog.record``)
    ├── KafkaIOError              a Kafka cluster is unreachable, or refused a request
    └── SparkError                Spark or Java did not start, or failed

End of data is a return value, never an exception.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

# A copy in place would truncate the file first, while other processes read it.
RESTORE = "restore the file from a replica or a backup (cp to another name, then mv)"
SHOWN_MAX = 120  # characters of a value in an error message
RAISE_LIMIT = (
    "raise the limit: --max-body-bytes, the option maxBodyBytes, or MessageStore.max_body_bytes"
)


class StoreError(Exception):
    """The base class; its message is one sentence. Every subclass can be pickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.args, self.__dict__)


def _restore(kind: type[StoreError], args: tuple[Any, ...], values: dict[str, Any]) -> StoreError:
    error: StoreError = kind.__new__(kind)  # __init__ has already built the message
    error.args = args
    error.__dict__.update(values)
    return error


class ConfigError(StoreError):
    """A setting is malformed, or does not fit the files it is applied to."""


class NoQueuesError(ConfigError):
    """A log has no queues yet: nothing has been dispatched."""


class NoLogError(ConfigError):
    """A store has no directory of a commit log."""


class SlowExpressionError(ConfigError):
    """A regular expression takes too long."""


class BodyTooLargeError(ConfigError):
    """The bodies of one message or one call exceed the limit of the read."""

    @classmethod
    def of_body(cls, offset: int, limit: int, *, is_stored: bool = False) -> BodyTooLargeError:
        """Return the error of the message at a commit log offset; ``limit`` in bytes.

        ``is_stored``: the body is not compressed.
        """
        size = "has" if is_stored else "decompresses to"
        return cls(
            f"the body of the message at commit log offset {offset} {size} more than "
            f"{limit} bytes; {RAISE_LIMIT}"
        )

    @classmethod
    def of_call(cls, limit: int) -> BodyTooLargeError:
        """Return the error of a call whose bodies exceed ``limit`` bytes in all."""
        return cls(
            f"the bodies of the messages of one call decompress to more than {limit} bytes in "
            f"all; read fewer messages at once, decompress them one by one (Message.read_body), "
            f"or {RAISE_LIMIT}"
        )


class ProgressDeletedError(ConfigError):
    """The progress of OUTPUT was deleted while a reader had it open."""


class DamageError(StoreError):
    """Bytes at ``offset`` of ``path`` break the format.

    ``offset`` is a position in the stream that the file belongs to (the physical offset for a
    commit log file), so it does not depend on the file's name.
    """

    def __init__(self, path: Path | str, offset: int, reason: str, hint: str = "") -> None:
        self.path = Path(path)
        self.offset = offset
        self.reason = reason
        self.hint = hint
        text = f"damaged: {path} at offset {offset}: {reason}"
        super().__init__(f"{text}; {hint}" if hint else text)


class VanishedError(DamageError):
    """Bytes of a mapped file vanished while they were read: it was truncated, for example."""


class LostDataError(DamageError):
    """The log has lost the bytes ``[begin, end)``."""

    def __init__(
        self, path: Path | str, begin: int, end: int, *, reason: str, hint: str = ""
    ) -> None:
        super().__init__(path, begin, f"{reason}: offsets {begin} to {end} are lost", hint)
        self.begin = begin
        self.end = end


class OutputInUseError(StoreError):
    """A broker or another dispatcher holds the ``lock`` file of OUTPUT."""


class MirrorInUseError(OutputInUseError):
    """Another mirror has taken over this mirror's name."""


class UnknownTopicError(StoreError):
    """The store holds neither a message nor any other trace of a topic."""


class UnsupportedFormatError(StoreError):
    """A store of an unsupported format, or what cannot be answered for one; never read in part."""


class StoreIOError(StoreError):
    """The operating system refused an operation on a file."""

    def __init__(self, action: str, path: Path | str, cause: OSError) -> None:
        self.path = Path(path)
        self.errno = cause.errno
        super().__init__(f"cannot {action} {path}: {cause.strerror or cause}")


class KafkaIOError(StoreError):
    """A Kafka cluster was not reached in time, or refused a request for no known setting."""


class SparkError(StoreError):
    """Spark or Java did not start, or failed a query with an error from outside this tree."""


def shown(value: str) -> str:
    """Return a value as error messages show it: quoted, truncated if long."""
    if len(value) <= SHOWN_MAX:
        return repr(value)
    return f"{value[:SHOWN_MAX]!r}… ({len(value)} characters)"


def parse_fault(error: Exception) -> str:
    """Return the reason why a text could not be decoded or parsed as JSON."""
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8 at byte {error.start}"
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON at line {error.lineno}, column {error.colno}"
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if type(error) is ValueError:  # Python limits the digits of an integer
        return "an integer has too many digits"
    return str(error)
