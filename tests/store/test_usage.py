"""What fills a log: compared with a count of its messages one by one."""

import os
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest

from store.commitlog.record import Message
from store.config import load_config
from store.reads.message_filter import MessageFilter
from store.reads.message_search import LogSearch
from store.usage import KEYS, By, expiries, kind_of, measure_usage
from tests.logs.build import Message as Written
from tests.logs.build import build_log, write_log
from tests.support.stores.written import corrupt

FILE_SIZE = 4096
DAY_MS = 24 * 3600 * 1000
START = 1_700_000_000_000
TOPICS = ("T", "U", "%RETRY%g", "%DLQ%g", "RMQ_SYS_TRACE_TOPIC", "SCHEDULE_TOPIC_XXXX")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    messages = [
        Written(
            TOPICS[n % len(TOPICS)],
            n % 3,
            n,
            body=b"x" * (n % 40),
            properties=[("TAGS", "ab"[n % 2])] if n % 4 else [],
            store_timestamp=START + n * DAY_MS // 50,
        )
        for n in range(200)
    ]
    write_log(build_log(messages, FILE_SIZE), tmp_path / "commitlog")
    (tmp_path / "broker.conf").write_text(f"mappedFileSizeCommitLog={FILE_SIZE}\n")
    return tmp_path


def day_of(message: Message) -> str:
    return str(datetime.fromtimestamp(message.store_timestamp / 1000, UTC).date())


FIELD = {
    "topic": lambda m: m.topic,
    "queue_id": lambda m: m.queue_id,
    "tag": lambda m: m.tags,
    "day": day_of,
    "host": lambda m: m.born_host.rpartition(":")[0],
}


@pytest.mark.parametrize("topics", [frozenset[str](), frozenset({"T", "%DLQ%g"})])
@pytest.mark.parametrize("by", By)
def test_the_counts_are_those_of_the_messages(store: Path, by: By, topics: frozenset[str]) -> None:
    config, wanted = load_config(store), MessageFilter(topics=topics)
    expected: Counter[tuple[object, ...]] = Counter()
    sizes: Counter[tuple[object, ...]] = Counter()
    kinds: Counter[str] = Counter()
    for message in LogSearch(store, config, wanted).messages():
        key = tuple(FIELD[name](message) for name in KEYS[by])
        expected[key] += 1
        sizes[key] += message.size
        kinds[kind_of(message.topic)] += message.size
    found = measure_usage(store, config, by, wanted)
    rows = list(found.groups.rows())
    keys = [tuple(row[name] for name in KEYS[by]) for row in rows]
    assert {k: row["messages"] for k, row in zip(keys, rows, strict=True)} == expected
    assert {k: row["bytes"] for k, row in zip(keys, rows, strict=True)} == sizes
    assert {row["kind"]: row["bytes"] for row in found.kinds} == kinds
    assert [row["bytes"] for row in rows] == sorted(sizes.values(), reverse=True)


def test_damage_is_passed_and_listed(store: Path) -> None:
    config = load_config(store)
    corrupt(store / "commitlog" / f"{FILE_SIZE:020d}", 8)
    found = measure_usage(store, config)
    assert [damage.begin for damage in found.damages] == [FILE_SIZE]
    assert sum(row["messages"] for row in found.groups.rows()) == 199


def test_files_expire_after_file_reserved_time_but_the_last(store: Path) -> None:
    files = sorted((store / "commitlog").iterdir())
    for n, file in enumerate(files):
        os.utime(file, (START // 1000 + n // 2 * DAY_MS // 1000,) * 2)
    (store / "broker.conf").write_text(
        f"mappedFileSizeCommitLog={FILE_SIZE}\nfileReservedTime=48\n"
    )
    found = expiries(store, load_config(store))
    assert [expiry.files for expiry in found[:-1]] == [2] * (len(found) - 1)
    assert sum(expiry.files for expiry in found) == len(files) - 1
    first = datetime.fromtimestamp(START / 1000, UTC).toordinal() + 2
    assert found[0].day == str(datetime.fromordinal(first).date())
    assert found[0].bytes == 2 * FILE_SIZE


def test_the_kinds_of_topics() -> None:
    assert [*map(kind_of, TOPICS)] == ["user", "user", "retry", "dead letter", "trace", "system"]
