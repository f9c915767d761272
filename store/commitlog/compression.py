"""Decompression of message bodies, by the compression type in the system flag.

====  ====  =====================================================================
type  name  framing
====  ====  =====================================================================
0, 3  ZLIB  one zlib stream (RFC 1950); trailing bytes are ignored
1     LZ4   LZ4 frames, one after another
2     ZSTD  Zstandard frames, one after another
====  ====  =====================================================================

Java parity: ``ZlibCompressor``, ``Lz4Compressor``, ``ZstdCompressor`` and the streams below them;
but a truncated frame after a complete one is damage here, whereas zstd-jni drops it. Before 4.9.4
the type is always 0.

A few stored bytes can decompress to gigabytes, so every function here takes a limit on the bytes it
produces. Input is fed in steps so small that one step yields at most about 4 MB.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import lz4.frame
import zstandard

from store.errors import BodyTooLargeError, DamageError
from store.layout import (
    COMPRESSION_LZ4,
    COMPRESSION_ZLIB,
    COMPRESSION_ZSTD,
    SYS_COMPRESSED,
    SYS_COMPRESSION_TYPE,
)

BODY_BYTES_MAX = 64 * 1024 * 1024  # the default limit of one decompressed body
BODY_BYTES_CEILING = 2**31 - 1  # the largest limit: what a Java array and an Arrow value can hold
_STORED_PIECE = 256 * 1024  # bytes of a body that is not compressed
_FIRST_STEP = 16  # input bytes of the first step, for callers that need only the head
_WINDOW_MAX = 1 << 27  # Java parity: zstd-jni refuses frames that need a larger window
_WINDOW_TOO_LARGE = "too much memory"  # in libzstd's message about a frame with such a window


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes | None: ...
    def decompress(self, data: bytes, /) -> bytes: ...


class StoredBody(Protocol):
    """A body as stored: bytes, or bytes that stay in a map. Slices are copies."""

    def __len__(self) -> int: ...
    def __getitem__(self, part: slice, /) -> bytes: ...


class _UnreadableError(DamageError):
    """A body that does not decompress."""


class _Codec(NamedTuple):
    name: str
    start: Callable[[int], _Decompressor]  # takes the size limit
    step: int  # bytes fed at once: the expansion is at most 1032:1, 255:1, and 128 KB in 4 bytes
    takes_many: bool  # whether frames may follow one another


def _start_zstd(size_max: int) -> _Decompressor:
    window = max(size_max, _WINDOW_MAX)
    return zstandard.ZstdDecompressor(max_window_size=window).decompressobj()


_ZLIB = _Codec("zlib", lambda _: zlib.decompressobj(), 4 * 1024, takes_many=False)
_CODECS = {
    0: _ZLIB,
    COMPRESSION_LZ4: _Codec(
        "lz4", lambda _: lz4.frame.LZ4FrameDecompressor(), 16 * 1024, takes_many=True
    ),
    COMPRESSION_ZSTD: _Codec("zstd", _start_zstd, 128, takes_many=True),
    COMPRESSION_ZLIB: _ZLIB,
}


def is_compressed(body: StoredBody, sys_flag: int) -> bool:
    """Return whether a stored body is flagged as compressed; an empty one never is."""
    return bool(sys_flag & SYS_COMPRESSED and len(body))


def decompress(
    body: StoredBody, sys_flag: int, *, path: Path | str, offset: int, limit: int = BODY_BYTES_MAX
) -> bytes:
    """Return the body as the producer sent it, decompressed if necessary.

    ``path`` and ``offset`` locate the record in errors. Raises DamageError, and BodyTooLargeError
    for a body that decompresses to more than ``limit`` bytes.
    """
    if not is_compressed(body, sys_flag):
        return body[:]
    pieces, size = [], 0
    for piece in _pieces(body, sys_flag, (path, offset), limit):
        size += len(piece)
        if size > limit:
            raise BodyTooLargeError.of_body(offset, limit)
        pieces.append(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def readable_body(
    body: StoredBody, sys_flag: int, *, offset: int = 0, limit: int = BODY_BYTES_MAX
) -> bytes:
    """Return the body as the producer sent it, or as stored if it cannot be decompressed.

    A producer may set the flag wrongly, and brokers do not check it: the record's CRC covers the
    stored body, so such a record is not damaged and must not stop a read. Raises BodyTooLargeError,
    as ``decompress`` does.
    """
    try:
        return decompress(body, sys_flag, path="", offset=offset, limit=limit)
    except _UnreadableError:
        return body[:]


@dataclass(frozen=True, slots=True)
class BodyPieces:
    """A body of ``size`` bytes, in pieces of at most about 4 MB, of which one exists at a time.

    Each iteration decompresses it again. ``state_bytes`` is what the decompressor keeps at most.
    """

    size: int
    state_bytes: int
    _begin: Callable[[], Iterator[bytes]]

    def __iter__(self) -> Iterator[bytes]:
        return self._begin()


def readable_pieces(
    body: StoredBody, sys_flag: int, *, offset: int = 0, limit: int = BODY_BYTES_MAX
) -> BodyPieces:
    """Return ``readable_body`` in pieces; it is decompressed once to find its size.

    Raises BodyTooLargeError.
    """

    def decompressed() -> Iterator[bytes]:
        return _pieces(body, sys_flag, ("", offset), limit)

    def stored() -> Iterator[bytes]:
        return (body[at : at + _STORED_PIECE] for at in range(0, len(body), _STORED_PIECE))

    if not is_compressed(body, sys_flag):
        return BodyPieces(len(body), 0, stored)
    size = 0
    try:
        for piece in decompressed():
            size += len(piece)
            if size > limit:
                raise BodyTooLargeError.of_body(offset, limit)
    except _UnreadableError:
        return BodyPieces(len(body), 0, stored)
    has_window = sys_flag & SYS_COMPRESSION_TYPE == COMPRESSION_ZSTD
    window = min(size, max(limit, _WINDOW_MAX)) if has_window else 0
    return BodyPieces(size, window, decompressed)


def readable_head(
    body: StoredBody, sys_flag: int, size: int, *, offset: int = 0, limit: int = BODY_BYTES_MAX
) -> bytes:
    """Return the first ``size`` bytes of ``readable_body``, decompressing little more.

    Raises BodyTooLargeError if even these exceed ``limit``.
    """
    if not is_compressed(body, sys_flag):
        return body[:size]
    head = bytearray()
    try:
        for piece in _pieces(body, sys_flag, ("", offset), limit):
            head += piece[: size + 1]
            if min(len(head), size) > limit:
                raise BodyTooLargeError.of_body(offset, limit)
            if len(head) >= size:
                break
    except _UnreadableError:
        return body[:size]
    return bytes(head[:size])


def _pieces(
    body: StoredBody, sys_flag: int, place: tuple[Path | str, int], limit: int
) -> Iterator[bytes]:
    """Yield the decompressed bytes in pieces of at most about 4 MB. Raises DamageError.

    Raises BodyTooLargeError for a Zstandard frame whose window alone exceeds the limit.
    """
    kind = sys_flag & SYS_COMPRESSION_TYPE
    codec = _CODECS.get(kind)
    if codec is None:
        raise _UnreadableError(*place, f"the body's compression type {kind >> 8} is not known")
    try:
        yield from _inflate(codec, body, limit)
    except (ValueError, RuntimeError, zlib.error, zstandard.ZstdError) as e:
        if codec.start is _start_zstd and _WINDOW_TOO_LARGE in str(e):
            raise BodyTooLargeError.of_body(place[1], limit) from e
        reason = f"the body does not decompress with {codec.name}: {e}"
        raise _UnreadableError(*place, reason) from e


def _inflate(codec: _Codec, body: StoredBody, limit: int) -> Iterator[bytes]:
    at, step = 0, _FIRST_STEP
    while at < len(body):
        frame = codec.start(limit)
        while at < len(body) and not frame.eof:
            fed = body[at : at + step]
            at += len(fed)
            step = min(2 * step, codec.step)
            yield frame.decompress(fed)
        if not frame.eof:
            raise ValueError("it is truncated")
        if not codec.takes_many:
            return
        at -= len(frame.unused_data or b"")
