"""The codec of the state files below ``OUTPUT/reput``: typed records in two lines.

A state file is a JSON object on one line, followed by the CRC-32 of that line in hex on the next.
The checksum detects damage, not forgery, so the decoder trusts no value: each field is checked
against the annotation of its dataclass field, and a text that names a file or directory must pass
the same check as a name from a log or a directory listing.

====================================  =============================================================
annotation                            accepts
====================================  =============================================================
``int``                               a signed 64-bit integer; not a boolean or a float
``bool``, ``str``                     exactly that type
``Annotated[T, Check(…)]``            a ``T`` that the check accepts
``T | None``                          ``null`` too
``tuple[T, …]``, ``tuple[A, B]``      a list, of any length or of this length
``dict[K, V]``                        an object with keys ``K``
``Any``                               any value; an enclosing check validates it
a dataclass                           an object with its fields
``Annotated[dataclass, BY_POSITION]``  a list of its fields, in order
====================================  =============================================================

Every field is required. An unknown field is refused, unless the record is read as ``part``, by a
reader that needs only some of the fields. A dataclass may have a method ``check_fields``, which
raises MismatchError if fields that are right by themselves contradict one another.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import types
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from store.errors import DamageError, StoreError, StoreIOError, UnsupportedFormatError, parse_fault
from store.io.file_system import read_small_file

FORMAT_VERSION = 1
STATE_BYTES_MAX = 256 << 20  # some million queues, each with an end or drops
_PIECE = 1 << 16
_CRC_DIGITS, _HEX_DIGITS = 8, set("0123456789abcdef")
_SHOWN_MAX = 100  # characters of a value in an error message
_INT32, _INT64 = 1 << 31, 1 << 63
_LINK = "it is a symbolic link, or reached through a loop of them"
_SCALARS = {int: "a 64-bit integer", str: "a text", bool: "true or false"}
_Record = TypeVar("_Record")
_Decoder = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Check:
    """A condition on the values of a field beyond their type, and its name in errors."""

    what: str
    accepts: Callable[[Any], bool]


BY_POSITION = "by position"


def span(low: int, high: int) -> Check:
    """Return the check for an integer from ``low`` to ``high``, both inclusive."""
    return Check(f"an integer from {low} to {high}", lambda value: low <= value <= high)


def one_of(*values: str) -> Check:
    """Return the check for a text from a fixed set."""
    return Check(f"one of {', '.join(values)}", frozenset(values).__contains__)


def can_be_path(text: str) -> bool:
    """Return whether a text can be a path: encodable by the file system, without NUL."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def is_checksum(text: str) -> bool:
    """Return whether a text is a CRC-32 in hex, or empty."""
    return not text or (len(text) == _CRC_DIGITS and set(text) <= _HEX_DIGITS)


# Bounded so that a record's end and sums of counts still fit 64 bits.
Offset = Annotated[int, span(0, _INT64 - _INT32)]
Position = Annotated[int, span(-1, _INT64 - _INT32)]  # -1: none
Count = Annotated[int, span(0, _INT64 // 2)]
Int32 = Annotated[int, span(-_INT32, _INT32 - 1)]
RecordSize = Annotated[int, span(1, _INT32 - 1)]
Crc32 = Annotated[int, span(0, 2 * _INT32 - 1)]
PathText = Annotated[str, Check("a path", can_be_path)]
Checksum = Annotated[str, Check("a CRC-32 in hex", is_checksum)]


def read_state_file(path: Path | str) -> bytes | None:
    """Return the bytes of a state file, None if it does not exist.

    Raises StoreIOError for anything but a regular file (a symbolic link is none), DamageError for
    a file of more than ``STATE_BYTES_MAX`` bytes.
    """
    try:
        return read_small_file(path, STATE_BYTES_MAX, follows_links=False)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as e:
        if e.errno == errno.EFBIG:
            raise DamageError(path, 0, f"the file has more than {STATE_BYTES_MAX} bytes") from e
        is_link = e.errno == errno.ELOOP
        raise StoreIOError("read", path, OSError(e.errno, _LINK) if is_link else e) from e


def read_record(path: Path, kind: type[_Record], *, part: bool = False) -> _Record | None:
    """Return the record of a state file, None if the file does not exist.

    Raises as ``read_state_file`` and ``decode_record``.
    """
    data = read_state_file(path)
    return None if data is None else decode_record(data, path, kind, part=part)


def encode_record(record: Any, **encoded: Any) -> bytes:
    """Encode a dataclass as two lines; ``encoded`` replaces the fields that are BY_POSITION.

    Raises StoreError if the record is too large to be read back.
    """
    values = {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}
    values |= {"format": FORMAT_VERSION, **encoded}
    line = json.dumps(values, sort_keys=True, default=dataclasses.asdict).encode()
    if len(line) > STATE_BYTES_MAX - _PIECE:
        raise StoreError(f"a state record of {len(line)} bytes is larger than can be read back")
    return line + b"\n%08x\n" % zlib.crc32(line)


def is_sealed(data: bytes) -> bool:
    """Return whether the second line is the checksum of the first."""
    line, _, rest = data.partition(b"\n")
    return rest.strip() == b"%08x" % zlib.crc32(line)


def decode_record(data: bytes, path: Path, kind: type[_Record], *, part: bool = False) -> _Record:
    """Decode the record of a state file as a dataclass; ``part``: ignore unknown fields.

    Raises DamageError (naming ``path``), UnsupportedFormatError for the format of another release.
    """
    if not is_sealed(data):
        raise DamageError(path, 0, f"the {path.name} record does not match its checksum")
    try:
        values = _object(json.loads(data.partition(b"\n")[0]))
        version = values.pop("format", None)
        if type(version) is int and version != FORMAT_VERSION:
            raise UnsupportedFormatError(
                f"{path} has format {_shown(version)}; this release reads format {FORMAT_VERSION}: "
                "rebuild into a new OUTPUT (reput rebuild)"
            )
        if type(version) is not int:
            raise MismatchError(f"format is {_shown(version)}, not an integer")
        hint: Any = kind
        record: _Record = _record(hint, part=part)(values)
    except (ValueError, RecursionError) as e:
        raise DamageError(
            path, 0, f"the {path.name} record cannot be read: {parse_fault(e)}"
        ) from e
    return record


def decode_value(kind: Any, value: Any) -> Any:
    """Decode a JSON value according to an annotation. Raises ValueError."""
    return _decoder(kind)(value)


class MismatchError(ValueError):
    """A value does not match the annotation of its field."""

    def __init__(self, reason: str, place: str = "") -> None:
        self.reason = reason
        self.place = place
        super().__init__(f"{place}: {reason}" if place else reason)

    def within(self, place: str) -> MismatchError:
        """Return the same error for a value inside ``place``."""
        inner = self.place
        joint = "" if not inner or inner.startswith("[") else "."
        return MismatchError(self.reason, f"{place}{joint}{inner}")


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer with too many digits
        text = f"a value of type {type(value).__name__}"
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise MismatchError(f"{_shown(value)} is not an object")
    return value


@cache
def _decoder(hint: Any) -> _Decoder:
    """Return the decoder of JSON values for an annotation."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        inner, *rules = arguments
        if BY_POSITION in rules:
            return _by_position(inner)
        return _checked(_decoder(inner), rules)
    if origin in (Union, types.UnionType):
        (inner,) = (argument for argument in arguments if argument is not types.NoneType)
        decode = _decoder(inner)
        return lambda value: None if value is None else decode(value)
    if origin is tuple:
        return _list_of(arguments)
    if origin is dict:
        return _mapping(*map(_decoder, arguments))
    if hint is Any:
        return lambda value: value
    return _scalar(hint) if hint in _SCALARS else _record(hint)


def _scalar(kind: type) -> _Decoder:
    def decode(value: Any) -> Any:
        is_right = type(value) is kind
        if not is_right or (kind is int and not -_INT64 <= value < _INT64):
            raise MismatchError(f"{_shown(value)} is not {_SCALARS[kind]}")
        return value

    return decode


def _checked(decode: _Decoder, rules: list[Check]) -> _Decoder:
    def decode_checked(value: Any) -> Any:
        decoded = decode(value)
        for rule in rules:
            if not rule.accepts(decoded):
                raise MismatchError(f"{_shown(value)} is not {rule.what}")
        return decoded

    return decode_checked


def _list_of(arguments: tuple[Any, ...]) -> _Decoder:
    is_any_length = arguments[-1] is Ellipsis
    decoders = [_decoder(argument) for argument in arguments if argument is not Ellipsis]

    def decode(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise MismatchError(f"{_shown(value)} is not a list")
        if not is_any_length and len(value) != len(decoders):
            raise MismatchError(f"a list has {len(value)} values, not {len(decoders)}")
        each = decoders * len(value) if is_any_length else decoders
        return tuple(
            _at(f"[{number}]", decode, item)
            for number, (decode, item) in enumerate(zip(each, value, strict=True))
        )

    return decode


def _mapping(decode_key: _Decoder, decode_item: _Decoder) -> _Decoder:
    def decode(value: Any) -> dict[Any, Any]:
        return {
            _at(_shown(key), decode_key, key): _at(_shown(key), decode_item, item)
            for key, item in _object(value).items()
        }

    return decode


@cache
def _record(kind: Any, *, part: bool = False) -> _Decoder:
    hints = get_type_hints(kind, include_extras=True)
    fields = dataclasses.fields(kind)
    decoders = {field.name: _decoder(hints[field.name]) for field in fields}
    check: Callable[[Any], None] = getattr(kind, "check_fields", lambda _record: None)

    def decode(value: Any) -> Any:
        values = _object(value)
        missing = sorted(decoders.keys() - values.keys())
        unknown = sorted(values.keys() - decoders.keys())
        if missing:
            raise MismatchError(f"{missing[0]} is missing")
        if unknown and not part:
            raise MismatchError(f"{_shown(unknown[0])} is not a field of it")
        record = kind(**{n: _at(n, decode, values[n]) for n, decode in decoders.items()})
        check(record)
        return record

    return decode


def _by_position(kind: Any) -> _Decoder:
    hints = get_type_hints(kind, include_extras=True)
    decode_list = _list_of(tuple(hints[field.name] for field in dataclasses.fields(kind)))
    return lambda value: kind(*decode_list(value))


def _at(place: str, decode: _Decoder, value: Any) -> Any:
    try:
        return decode(value)
    except MismatchError as e:
        raise e.within(place) from e.__cause__
