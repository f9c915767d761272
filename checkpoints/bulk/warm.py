"""Loading the kernels that bulk tasks use, before processes are forked that run them."""

from __future__ import annotations

import numpy as np

from store.bulk.queue_parts import place_part
from store.config import StoreConfig
from store.kernels.index import PutInput, PutState, put_keys
from store.kernels.log_walk import find_record
from store.marks import INDEX_HEADER_FIELDS
from store.scan import Scanner

_EMPTY_LOG = np.frombuffer(bytes(4096), np.uint8)  # read-only, as a mapped file is


def load_kernels() -> None:
    """Call the kernels that workers use, on nothing: numba loads a kernel when it is first called.

    Numba must find the argument types that the work will have.
    """
    scanner = Scanner(StoreConfig(), chunk_bytes=4096)
    for _ in scanner.chunks(_EMPTY_LOG, 0, 0, len(_EMPTY_LOG)):
        pass
    find_record(_EMPTY_LOG, (0, 0, len(_EMPTY_LOG)), scanner.rules)
    place_part([], 20)
    none = np.empty(0, np.int64)
    state = PutState(
        np.ones(INDEX_HEADER_FIELDS, np.int64),
        np.zeros(1, np.int32),
        np.zeros(1, np.uint8),
        np.empty(0, np.uint32),
    )
    narrow = np.empty(0, np.int32)
    put_keys(state, PutInput(none, none, np.empty(0, np.uint8), narrow, narrow), (0, 0), (2, True))
