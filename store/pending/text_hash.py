"""Texts as two integers: what identifies a message has a fixed size, whoever chose its length.

Each text is the sum of its bytes, each times a random factor of its place, modulo a prime, in four
lanes (multilinear hashing). Two different texts have equal hashes with a probability of 2^-124: the
factors are drawn per object, so that nobody can choose texts that collide.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

_PRIME = (1 << 31) - 1
_LANES = 4
_PLACES_STEP = 1 << 12

Longs = NDArray[np.int64]


class TextHash:
    """A hash function; those of two objects differ."""

    def __init__(self) -> None:
        self._random = np.random.default_rng()  # seeded by the operating system
        self._factors = np.empty((_LANES, 0), np.int64)

    def of(self, texts: pa.Array) -> tuple[pa.Array, pa.Array]:
        """Return the hashes of strings as two columns of integers, null for null."""
        sizes = texts.cast(pa.binary())
        _, offsets_buffer, data_buffer = sizes.buffers()
        begin = sizes.offset
        offsets = np.frombuffer(offsets_buffer, np.int32)[begin : begin + len(texts) + 1]
        offsets = offsets.astype(np.int64)
        data = np.frombuffer(data_buffer or b"", np.uint8)[offsets[0] : offsets[-1]]
        values = data.astype(np.int64) + 1  # no byte is 0, so that each text has its own length
        lengths, starts = np.diff(offsets), offsets[:-1] - offsets[0]
        places = np.arange(len(data)) - np.repeat(starts, lengths)
        self._draw_factors(int(lengths.max(initial=0)))
        lanes = [_sums(values * factors[places], starts, lengths) for factors in self._factors]
        mask = texts.is_null().to_numpy(zero_copy_only=False)
        pairs = (lanes[0] << 31 | lanes[1], lanes[2] << 31 | lanes[3])
        return pa.array(pairs[0], mask=mask), pa.array(pairs[1], mask=mask)

    def _draw_factors(self, places: int) -> None:
        known = self._factors.shape[1]
        if places > known:
            more = -(-(places - known) // _PLACES_STEP) * _PLACES_STEP
            drawn = self._random.integers(0, _PRIME, (_LANES, more), np.int64)
            self._factors = np.concatenate([self._factors, drawn], axis=1)


def _sums(terms: Longs, starts: Longs, lengths: Longs) -> Longs:
    """Return the sum of each text's terms modulo the prime."""
    sums = np.zeros(len(starts), np.int64)
    has_any = lengths > 0
    if has_any.any():
        sums[has_any] = np.add.reduceat(terms, starts[has_any]) % _PRIME
    return sums
