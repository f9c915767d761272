"""The part of a range stored between two times, against a twin over the times of the records."""

from random import Random

import numpy as np

from store.commitlog.scanner import scan_rules
from store.config import StoreConfig
from store.kernels import record as rk
from store.kernels.log_walk import stored_between
from store.kernels.record import check_record, read_i64
from tests.logs.build import build_log
from tests.logs.random_logs import Mix, random_messages

FILE_SIZE = 4096


def test_the_part_holds_all_records_between_the_times_and_begins_and_ends_with_one() -> None:
    rules, random = scan_rules(StoreConfig()), Random(5)
    files = build_log(random_messages(random, 40, Mix(huge_size=800)), FILE_SIZE)
    parts_found = set()
    for base, data in files.items():
        for is_damaged in (False, True):
            buf = np.frombuffer(bytearray(data), np.uint8).copy()
            records, at = [], 0
            while (parts := check_record(buf, at, base, rules)).reason == rk.OK:
                time = int(read_i64(buf, parts.store_timestamp_at))
                records.append((at, int(parts.end), time))
                at = int(parts.end)
            stop = FILE_SIZE if parts.reason == rk.BLANK else at  # the last file ends in zeros
            if is_damaged:
                damaged = records.pop(len(records) // 2)
                records = [r for r in records if r[0] < damaged[0]]
                buf[damaged[0] + 4] ^= 1
            times = sorted({time for *_, time in records}) or [0]
            for low in (times[0] - 1, *times, times[-1] + 1):
                for high in (low, *times[-2:], times[-1] + 9):
                    wanted = [r for r in records if low <= r[2] <= high]
                    first = wanted[0][0] if wanted else -1
                    end = wanted[-1][1] if wanted else -1
                    if is_damaged:
                        first, end = (first if wanted else damaged[0]), stop
                    found = stored_between(buf, (base, 0, stop), (low, high), rules)
                    assert (first, end) == found
                    parts_found.add((first > 0, end == stop))
    assert len(parts_found) >= 3, "too few kinds of parts were tried"
