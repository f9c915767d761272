"""Decompression of bodies: every type a producer can use, invalid bodies, and the limits."""

import subprocess
import sys
import zlib
from pathlib import Path

import lz4.frame
import pytest
import zstandard

from store.commitlog.compression import (
    decompress,
    readable_body,
    readable_head,
    readable_pieces,
)
from store.errors import BodyTooLargeError, DamageError
from store.layout import COMPRESSION_LZ4, COMPRESSION_ZLIB, COMPRESSION_ZSTD, SYS_COMPRESSED
from tests.support.bombs import BOMBS

ZLIB, LZ4, ZSTD = (
    SYS_COMPRESSED | kind for kind in (COMPRESSION_ZLIB, COMPRESSION_LZ4, COMPRESSION_ZSTD)
)
PACK = {
    SYS_COMPRESSED: zlib.compress,
    ZLIB: zlib.compress,
    LZ4: lz4.frame.compress,
    ZSTD: zstandard.ZstdCompressor().compress,
}
NOISE = b"".join(zlib.crc32(b"%d" % n).to_bytes(4) for n in range(20_000))
TEXTS = [b"", b"a", b"hello " * 1000, bytes(3_000_000), NOISE]
# "hello", as written by the streams below RocketMQ's compressors (lz4-java 1.8.0, zstd-jni 1.5.2).
FROM_JAVA = {
    ZLIB: "789ccb48cdc9c90700062c0215",
    LZ4: "04224d1860707305000080" + "68656c6c6f" + "00000000",
    ZSTD: "28b52ffd0058280000" + "68656c6c6f" + "010000",
}
SKIPPABLE = bytes.fromhex("502a4d18 03000000 010203")


def unpack(body: bytes, sys_flag: int) -> bytes:
    return decompress(body, sys_flag, path="log", offset=7)


@pytest.mark.parametrize("sys_flag", PACK)
@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_packed_body_is_unpacked(sys_flag: int, text: bytes) -> None:
    assert unpack(PACK[sys_flag](text), sys_flag | 0x8) == text


@pytest.mark.parametrize("sys_flag", FROM_JAVA)
def test_body_packed_by_java_is_unpacked(sys_flag: int) -> None:
    assert unpack(bytes.fromhex(FROM_JAVA[sys_flag]), sys_flag) == b"hello"


@pytest.mark.parametrize("sys_flag", [0, COMPRESSION_LZ4, COMPRESSION_ZLIB | 0x8])
def test_body_without_the_flag_is_left_alone(sys_flag: int) -> None:
    assert unpack(b"\x78\x9c", sys_flag) == b"\x78\x9c"


@pytest.mark.parametrize("sys_flag", [SYS_COMPRESSED, LZ4, ZSTD])
def test_empty_body_is_empty(sys_flag: int) -> None:
    assert unpack(b"", sys_flag) == b""


@pytest.mark.parametrize("sys_flag", [LZ4, ZSTD])
def test_frames_follow_one_another(sys_flag: int) -> None:
    first, second = PACK[sys_flag](NOISE), PACK[sys_flag](b"end")
    assert unpack(first + SKIPPABLE + second, sys_flag) == NOISE + b"end"


def test_bytes_after_a_zlib_stream_are_ignored() -> None:
    assert unpack(zlib.compress(NOISE) + zlib.compress(b"x") + b"y", ZLIB) == NOISE


@pytest.mark.parametrize("sys_flag", PACK)
@pytest.mark.parametrize("left", [1, 5, -1])
def test_cut_body_is_damage(sys_flag: int, left: int) -> None:
    with pytest.raises(DamageError, match="does not decompress with") as damage:
        unpack(PACK[sys_flag](b"hello" * 100)[:left], sys_flag)
    assert (damage.value.path, damage.value.offset) == (Path("log"), 7)


@pytest.mark.parametrize("sys_flag", PACK)
def test_body_that_is_not_packed_is_damage(sys_flag: int) -> None:
    with pytest.raises(DamageError, match="does not decompress with"):
        unpack(b"plain text", sys_flag)


@pytest.mark.parametrize("kind", [4, 5, 6, 7])
def test_unknown_type_is_damage(kind: int) -> None:
    with pytest.raises(DamageError, match=f"compression type {kind} is not known"):
        unpack(b"x", SYS_COMPRESSED | kind << 8)


@pytest.mark.parametrize("sys_flag", PACK)
@pytest.mark.parametrize("size", [100_000, 20_000_000])
def test_body_that_unpacks_to_more_than_the_limit_is_refused(sys_flag: int, size: int) -> None:
    packed = PACK[sys_flag](bytes(size))
    with pytest.raises(BodyTooLargeError, match=f"offset 7 .* than {size - 1} bytes; .*--max-body"):
        decompress(packed, sys_flag, path="log", offset=7, limit=size - 1)
    assert decompress(packed, sys_flag, path="log", offset=7, limit=size) == bytes(size)


@pytest.mark.parametrize("sys_flag", PACK)
@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
@pytest.mark.parametrize("size", [1, 244, 5_000])
def test_head_is_the_beginning_of_the_body(sys_flag: int, text: bytes, size: int) -> None:
    assert readable_head(PACK[sys_flag](text), sys_flag, size) == text[:size]
    assert readable_head(text, 0, size) == text[:size]
    assert readable_head(b"plain text", sys_flag, size) == b"plain text"[:size]


@pytest.mark.parametrize("sys_flag", PACK)
@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_pieces_are_the_body_each_time(sys_flag: int, text: bytes) -> None:
    for stored, flag in ((PACK[sys_flag](text), sys_flag), (text, 0), (b"not packed", sys_flag)):
        expected, pieces = readable_body(stored, flag), readable_pieces(stored, flag)
        assert (expected, len(expected)) == (b"".join(pieces), pieces.size)
        assert expected == b"".join(pieces)
        assert all(len(piece) <= 5 << 20 for piece in pieces)


@pytest.mark.parametrize("sys_flag", PACK)
def test_pieces_beyond_the_limit_are_refused(sys_flag: int) -> None:
    packed = PACK[sys_flag](bytes(1000))
    with pytest.raises(BodyTooLargeError, match=r"offset 7 .* more than 999 bytes"):
        readable_pieces(packed, sys_flag, offset=7, limit=999)
    assert readable_pieces(packed, sys_flag, limit=1000).size == 1000


@pytest.mark.parametrize("sys_flag", PACK)
def test_head_beyond_the_limit_is_refused(sys_flag: int) -> None:
    packed = PACK[sys_flag](bytes(1000))
    with pytest.raises(BodyTooLargeError, match=r"offset 7 .* more than 99 bytes"):
        readable_head(packed, sys_flag, 100, offset=7, limit=99)
    assert readable_head(packed, sys_flag, 99, limit=99) == bytes(99)


def test_frame_with_a_window_beyond_the_limit_is_too_large_not_shown_as_stored() -> None:
    """A single-segment frame needs a window of its full size."""
    for declared in (200 << 20, 3 << 30):
        head = bytes.fromhex("28b52ffd e0") + declared.to_bytes(8, "little")
        packed = head + bytes.fromhex("020010 00") * 10_000
        for read in (readable_body, lambda body, flag: readable_head(body, flag, 60)):
            with pytest.raises(BodyTooLargeError, match="more than 67108864 bytes"):
                read(packed, ZSTD)


@pytest.mark.parametrize("sys_flag", [LZ4, ZSTD])
def test_many_empty_frames_take_linear_time(sys_flag: int) -> None:
    packed = PACK[sys_flag](b"") * 100_000
    assert unpack(packed + PACK[sys_flag](b"end"), sys_flag) == b"end"


@pytest.mark.parametrize("kind", BOMBS)
def test_memory_for_a_bomb_is_bounded_by_the_limit(kind: str) -> None:
    base, whole, head = (peak_mb(kind, what) for what in ("nothing", "whole", "head"))
    assert whole - base < 2.5 * 64
    assert head - base < 16


def peak_mb(kind: str, what: str) -> float:
    """Return the peak memory of a process that decompresses a body of many gigabytes."""
    program = f"""
import resource
from store.commitlog.compression import readable_body, readable_head
from store.errors import BodyTooLargeError
from tests.support.bombs import BOMBS
body, flag = BOMBS[{kind!r}]
try:
    if {what!r} == "whole":
        readable_body(body(), flag)
        raise AssertionError("no error")
    elif {what!r} == "head":
        assert len(readable_head(body(), flag, 244)) == 244
except BodyTooLargeError:
    pass
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    return float(done.stdout)
