"""Decompression bombs: small bodies that decompress to gigabytes, by algorithm."""

import zlib
from collections.abc import Callable

from store.layout import COMPRESSION_LZ4, COMPRESSION_ZSTD, SYS_COMPRESSED

_BOMB_BYTES = 2 << 30


def zstd_bomb() -> bytes:
    """Return a Zstandard frame of 2 GiB: a window of 128 KB, then blocks of 4 bytes for 128 KB."""
    blocks = _BOMB_BYTES >> 17
    block = (1 << 20 | 1 << 1).to_bytes(3, "little") + b"A"  # RLE, 128 KB
    last = (1 << 20 | 1 << 1 | 1).to_bytes(3, "little") + b"A"
    return bytes.fromhex("28b52ffd 00 38") + block * (blocks - 1) + last


def zlib_bomb() -> bytes:
    """Return a zlib stream of 2 GiB: a full flush makes equal chunks compress to equal bytes."""
    packer = zlib.compressobj(9)
    chunk = b"A" * (1 << 20)
    first = packer.compress(chunk) + packer.flush(zlib.Z_FULL_FLUSH)
    again = packer.compress(chunk) + packer.flush(zlib.Z_FULL_FLUSH)
    return first + again * ((_BOMB_BYTES >> 20) - 1)


def lz4_bomb() -> bytes:
    """Return an LZ4 frame of 1 GiB: one compressed block of 4 MB, 256 times."""
    import lz4.frame

    packed: bytes = lz4.frame.compress(
        b"A" * (4 << 20), block_size=lz4.frame.BLOCKSIZE_MAX4MB, block_linked=False,
        store_size=False,
    )  # fmt: skip
    head, block, end = packed[:7], packed[7:-4], packed[-4:]
    return head + block * 256 + end


# Name -> (generator, the system flag of its message).
BOMBS: dict[str, tuple[Callable[[], bytes], int]] = {
    "zlib": (zlib_bomb, SYS_COMPRESSED),
    "lz4": (lz4_bomb, SYS_COMPRESSED | COMPRESSION_LZ4),
    "zstd": (zstd_bomb, SYS_COMPRESSED | COMPRESSION_ZSTD),
}
