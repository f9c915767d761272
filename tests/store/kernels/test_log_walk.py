"""Walking the chain of records, against a twin that judges each record by itself."""

from random import Random

import numpy as np
import pytest
from numpy.typing import NDArray

from store.commitlog.scanner import scan_rules
from store.config import StoreConfig
from store.kernels import record as rk
from store.kernels.log_walk import WalkEnd, walk
from store.kernels.record import Rules, check_record, is_complete
from tests.logs.build import Message, build_log
from tests.logs.random_logs import Mix, random_messages

FILE_SIZE = 4096
EVERY = 300


def plain_walk(
    buf: NDArray[np.uint8], span: tuple[int, int, int], rules: Rules, *, live: bool
) -> tuple[WalkEnd, list[int]]:
    """Walk as the kernel does, but ask of each record whether it is complete."""
    base, at, end = span
    last, begin = -1, at
    ends: list[int] = []
    while at < end:
        parts = check_record(buf, at, base, rules)
        if parts.reason != rk.OK:
            return WalkEnd(parts.reason, at, last, len(ends)), ends
        if live and not is_complete(buf, at, base, rules):
            return WalkEnd(rk.EMPTY, at, last, len(ends)), ends
        last, at = at, parts.end
        if at - begin >= EVERY:
            ends.append(at)
            begin = at
    return WalkEnd(rk.OK, at, last, len(ends)), ends


@pytest.mark.parametrize("live", [False, True], ids=["closed", "live"])
@pytest.mark.parametrize("prop_crc", [False, True], ids=["", "property CRC"])
def test_a_walk_ends_where_asking_of_each_record_ends_it(prop_crc: bool, live: bool) -> None:
    rules = scan_rules(StoreConfig(enabled_append_prop_crc=prop_crc))
    ends_in_zeros = [Message(), Message(properties=bytes(9)), Message(properties=b"TAGS\x01T\0\0")]
    random = Random(11)
    messages = random_messages(random, 40, Mix(huge_size=800))
    for message in ends_in_zeros * 4:
        messages.insert(random.randrange(len(messages)), message)
    files = build_log(messages, FILE_SIZE, prop_crc=prop_crc)
    reasons = set()
    for base, data in files.items():
        for cut in range(len(data), -1, -1):
            buf = np.frombuffer(data[:cut].ljust(FILE_SIZE, b"\0"), np.uint8)
            stop = FILE_SIZE if cut % 3 else random.randrange(FILE_SIZE)
            span = (base, 0, stop)
            ends = np.empty(FILE_SIZE, np.int64)
            end = walk(buf, span, rules, live, (ends, EVERY))
            expected, expected_ends = plain_walk(buf, span, rules, live=live)
            assert expected == end, f"file {base} cut off at {cut}"
            assert expected_ends == ends[: end.cuts].tolist()
            reasons.add(end.reason)
    assert reasons >= {rk.OK, rk.BLANK, rk.EMPTY}
