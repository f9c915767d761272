"""CRC-32 as a kernel, equal to ``java.util.zip.CRC32`` and ``zlib.crc32``.

On a processor with carry-less multiplication (PCLMULQDQ), blocks of 16 bytes are folded into one
block with the same CRC, as in Gopal et al., "Fast CRC Computation for Generic Polynomials Using
PCLMULQDQ Instruction" (Intel, 2009). Tables (slice-by-8) process that block and the bytes that do
not fill a block; on other processors they process everything.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import types as _types
from numba.extending import intrinsic
from numpy.typing import NDArray

from store.kernels.jit import config, kernel
from store.kernels.numba_private import cgutils

types: Any = _types  # its functions are not typed
_POLYNOMIAL = 0xEDB88320  # bit-reversed, as everything here
_BLOCK = 16


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


def _power(exponent: int) -> int:
    """Return x to a power, modulo the polynomial, as a factor of 33 bits."""
    power = 1 << 31  # of x, 0
    for _ in range(exponent):
        power = (power >> 1) ^ (_POLYNOMIAL if power & 1 else 0)
    return power << 1


def _folds() -> bool:
    """Return whether kernels are compiled for this processor, and it has PCLMULQDQ."""
    is_native = not config.CPU_NAME and not config.CPU_FEATURES
    return is_native and bool(llvm.get_host_cpu_features().get("pclmul"))


_TABLES = _make_tables()
_BITS = 8 * _BLOCK
_FACTORS = _power(_BITS + 32), _power(_BITS - 32)  # of a block's first half and second half


def _make_fold(_typing: Any, buf: Any, begin: Any, blocks: Any, crc: Any) -> Any:
    """Fold the blocks of ``buf`` from ``begin`` into one; return its halves, little-endian."""
    signature = types.UniTuple(types.uint64, 2)(buf, types.int64, types.int64, types.uint32)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, args[0])
        word = ir.IntType(64)
        pair = ir.VectorType(word, 2)
        multiply = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(pair, [pair, pair, ir.IntType(8)]),
            "llvm.x86.pclmulqdq",
        )
        factors = ir.Constant(pair, [ir.Constant(word, factor) for factor in _FACTORS])
        first = builder.gep(builder.bitcast(array.data, ir.IntType(8).as_pointer()), [args[1]])

        def block(number: Any) -> Any:
            at = builder.gep(first, [builder.mul(number, ir.Constant(word, _BLOCK))])
            return builder.load(builder.bitcast(at, pair.as_pointer()), align=1)

        begun = builder.insert_element(
            ir.Constant(pair, [0, 0]), builder.zext(args[3], word), ir.Constant(ir.IntType(32), 0)
        )
        folded = cgutils.alloca_once_value(builder, builder.xor(block(ir.Constant(word, 0)), begun))
        with cgutils.for_range_slice(
            builder, ir.Constant(word, 1), args[2], ir.Constant(word, 1)
        ) as (number, _):
            old = builder.load(folded)
            low = builder.call(multiply, [old, factors, ir.Constant(ir.IntType(8), 0x00)])
            high = builder.call(multiply, [old, factors, ir.Constant(ir.IntType(8), 0x11)])
            builder.store(builder.xor(builder.xor(low, high), block(number)), folded)
        end = builder.load(folded)
        halves = [builder.extract_element(end, ir.Constant(ir.IntType(32), n)) for n in (0, 1)]
        return context.make_tuple(builder, signature.return_type, halves)

    return signature, generate


_fold: Any = intrinsic(_make_fold)


@kernel
def _step(crc: np.uint32, low: np.uint32, high: np.uint32) -> np.uint32:
    """Advance the state ``crc`` by eight bytes."""
    low ^= crc
    return (
        _TABLES[7, low & np.uint32(0xFF)]
        ^ _TABLES[6, (low >> np.uint32(8)) & np.uint32(0xFF)]
        ^ _TABLES[5, (low >> np.uint32(16)) & np.uint32(0xFF)]
        ^ _TABLES[4, low >> np.uint32(24)]
        ^ _TABLES[3, high & np.uint32(0xFF)]
        ^ _TABLES[2, (high >> np.uint32(8)) & np.uint32(0xFF)]
        ^ _TABLES[1, (high >> np.uint32(16)) & np.uint32(0xFF)]
        ^ _TABLES[0, high >> np.uint32(24)]
    )


@kernel
def _by_tables(buf: NDArray[np.uint8], begin: int, end: int, crc: np.uint32) -> np.uint32:
    """Advance the state ``crc`` by ``buf[begin:end]``."""
    at = begin
    while at + 8 <= end:
        low = (
            np.uint32(buf[at])
            | (np.uint32(buf[at + 1]) << np.uint32(8))
            | (np.uint32(buf[at + 2]) << np.uint32(16))
            | (np.uint32(buf[at + 3]) << np.uint32(24))
        )
        high = (
            np.uint32(buf[at + 4])
            | (np.uint32(buf[at + 5]) << np.uint32(8))
            | (np.uint32(buf[at + 6]) << np.uint32(16))
            | (np.uint32(buf[at + 7]) << np.uint32(24))
        )
        crc = _step(crc, low, high)
        at += 8
    while at < end:
        crc = (crc >> np.uint32(8)) ^ _TABLES[0, (crc ^ np.uint32(buf[at])) & np.uint32(0xFF)]
        at += 1
    return crc


@kernel
def crc32_by_tables(buf: NDArray[np.uint8], begin: int, end: int) -> int:
    """Return the unsigned CRC-32 of ``buf[begin:end]``; works on any processor."""
    return int(_by_tables(buf, begin, end, np.uint32(0xFFFFFFFF)) ^ np.uint32(0xFFFFFFFF))


@kernel
def crc32_by_folding(buf: NDArray[np.uint8], begin: int, end: int) -> int:
    """Return the unsigned CRC-32 of ``buf[begin:end]``; needs PCLMULQDQ."""
    crc, at = np.uint32(0xFFFFFFFF), np.int64(begin)
    blocks = (np.int64(end) - at) // _BLOCK
    if blocks > 1:
        first, second = _fold(buf, at, blocks, crc)
        mask, half = np.uint64(0xFFFFFFFF), np.uint64(32)
        crc = _step(np.uint32(0), np.uint32(first & mask), np.uint32(first >> half))
        crc = _step(crc, np.uint32(second & mask), np.uint32(second >> half))
        at += blocks * _BLOCK
    return int(_by_tables(buf, at, end, crc) ^ np.uint32(0xFFFFFFFF))


crc32 = crc32_by_folding if _folds() else crc32_by_tables
