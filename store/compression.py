"""Decompressing a body: what the compressors of RocketMQ write, by the type in the system flag.

====  ====  =====================================================================
type  name  framing
====  ====  =====================================================================
0, 3  ZLIB  one zlib stream (RFC 1950); what follows it is ignored
1     LZ4   LZ4 frames, one after another
2     ZSTD  Zstandard frames, one after another
====  ====  =====================================================================

Java parity: ``ZlibCompressor``, ``Lz4Compressor``, ``ZstdCompressor`` and the streams below them;
but a cut frame behind a whole one is damage here, where zstd-jni drops it. Before 4.9.4 the type
is always 0.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

import lz4.frame
import zstandard

from store.errors import DamageError
from store.layout import (
    COMPRESSION_LZ4,
    COMPRESSION_ZLIB,
    COMPRESSION_ZSTD,
    SYS_COMPRESSED,
    SYS_COMPRESSION_TYPE,
)

BODY_SIZE_MAX = 2**31 - 1  # what a Java array and an Arrow value can hold
_PIECE_SIZE = 16 * 1024  # fed at once: bounds what a hostile body can make of one step


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes | None: ...
    def decompress(self, data: bytes, /) -> bytes: ...


class _Codec(NamedTuple):
    name: str
    start: Callable[[], _Decompressor]
    takes_many: bool  # whether frames may follow one another


_ZLIB = _Codec("zlib", zlib.decompressobj, takes_many=False)
_CODECS = {
    0: _ZLIB,
    COMPRESSION_LZ4: _Codec("lz4", lz4.frame.LZ4FrameDecompressor, takes_many=True),
    COMPRESSION_ZSTD: _Codec(
        "zstd", lambda: zstandard.ZstdDecompressor().decompressobj(), takes_many=True
    ),
    COMPRESSION_ZLIB: _ZLIB,
}


def decompress(body: bytes, sys_flag: int, *, path: Path | str, offset: int) -> bytes:
    """Return the body as its producer gave it; one that is not compressed as it is.

    ``path`` and ``offset`` are where the record lies. Raises DamageError naming them.
    """
    if not sys_flag & SYS_COMPRESSED or not body:
        return body
    kind = sys_flag & SYS_COMPRESSION_TYPE
    codec = _CODECS.get(kind)
    if codec is None:
        raise DamageError(path, offset, f"the body's compression type {kind >> 8} is not known")
    try:
        return _inflate(codec, body)
    except (ValueError, RuntimeError, zlib.error, zstandard.ZstdError) as e:
        reason = f"the body does not decompress with {codec.name}: {e}"
        raise DamageError(path, offset, reason) from e


def readable_body(body: bytes, sys_flag: int) -> bytes:
    """Return the body as its producer gave it, or as it is stored if it does not decompress.

    A producer may set the flag wrongly, and no broker looks: the record's CRC covers the body as
    it is stored, so such a record is not damaged and must not stop a read.
    """
    try:
        return decompress(body, sys_flag, path="", offset=0)
    except DamageError:
        return body


def _inflate(codec: _Codec, body: bytes) -> bytes:
    pieces = []
    size = 0
    rest = body
    while rest:
        frame = codec.start()
        at = 0
        while at < len(rest) and not frame.eof:
            pieces.append(frame.decompress(rest[at : at + _PIECE_SIZE]))
            size += len(pieces[-1])
            at += _PIECE_SIZE
            if size > BODY_SIZE_MAX:
                raise ValueError(f"it is longer than {BODY_SIZE_MAX} bytes")
        if not frame.eof:
            raise ValueError("it ends too early")
        rest = (frame.unused_data or b"") + rest[at:] if codec.takes_many else b""
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
