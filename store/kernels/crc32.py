"""CRC-32 as a kernel (slice-by-8), equal to ``java.util.zip.CRC32`` and ``zlib.crc32``."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from store.kernels.jit import kernel

_POLYNOMIAL = 0xEDB88320


def _make_tables() -> NDArray[np.uint32]:
    tables = np.zeros((8, 256), np.uint32)
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (_POLYNOMIAL if crc & 1 else 0)
        tables[0, byte] = crc
    for k in range(1, 8):
        tables[k] = (tables[k - 1] >> 8) ^ tables[0][tables[k - 1] & 0xFF]
    return tables


_TABLES = _make_tables()


@kernel
def crc32(buf: NDArray[np.uint8], begin: int, end: int) -> int:
    """Return the CRC-32 of ``buf[begin:end]``, unsigned."""
    crc = np.uint32(0xFFFFFFFF)
    at = begin
    while at + 8 <= end:
        low = crc ^ (
            np.uint32(buf[at])
            | (np.uint32(buf[at + 1]) << np.uint32(8))
            | (np.uint32(buf[at + 2]) << np.uint32(16))
            | (np.uint32(buf[at + 3]) << np.uint32(24))
        )
        crc = (
            _TABLES[7, low & np.uint32(0xFF)]
            ^ _TABLES[6, (low >> np.uint32(8)) & np.uint32(0xFF)]
            ^ _TABLES[5, (low >> np.uint32(16)) & np.uint32(0xFF)]
            ^ _TABLES[4, low >> np.uint32(24)]
            ^ _TABLES[3, buf[at + 4]]
            ^ _TABLES[2, buf[at + 5]]
            ^ _TABLES[1, buf[at + 6]]
            ^ _TABLES[0, buf[at + 7]]
        )
        at += 8
    while at < end:
        crc = (crc >> np.uint32(8)) ^ _TABLES[0, (crc ^ np.uint32(buf[at])) & np.uint32(0xFF)]
        at += 1
    return int(crc ^ np.uint32(0xFFFFFFFF))
