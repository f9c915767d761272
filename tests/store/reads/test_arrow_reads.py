"""Bulk reads as Arrow: the messages that the other reads return, in any division into batches."""

import datetime
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import duckdb
import polars
import pytest

from store import Message, MessageStore
from store.errors import ConfigError, DamageError
from store.reads.message_filter import MessageFilter
from store.reads.message_search import LogSearch
from tests.conftest import Golden
from tests.support.dispatching import dispatch_all
from tests.support.stores import displaced
from tests.support.stores.numbered import CONFIG, FILE_SIZE, make_store, numbered

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
MILLISECOND = datetime.timedelta(milliseconds=1)
MICROSECONDS_MAX = 2**63 - 1
SCALARS = ("topic", "queue_id", "queue_offset", "commit_log_offset", "size", "tags", "keys")

Row = tuple[Any, ...]
Item = TypeVar("Item")


def of_message(m: Message) -> Row:
    scalars = tuple(getattr(m, name) for name in SCALARS)
    properties = dict(m.properties)
    fits = abs(m.store_timestamp) <= MICROSECONDS_MAX // 1000  # else the column is null
    stored = m.store_timestamp if fits else None
    return *scalars, m.uniq_key, stored, m.born_host, properties, m.read_body()


def of_row(row: Mapping[str, Any]) -> Row:
    time = row["store_timestamp"]
    stored = None if time is None else (time - EPOCH) // MILLISECOND
    scalars = tuple(row[name] for name in SCALARS)
    properties = dict(row["properties"])
    return *scalars, row["uniq_key"], stored, row["born_host"], properties, row["body"]


def until_damage(items: Iterable[Item]) -> list[Item]:
    """Return the items before damage: one log has a record that its broker's version rejects."""
    found: list[Item] = []
    with suppress(DamageError):
        for item in items:
            found.append(item)  # noqa: PERF402 - extend would lose them
    return found


def read_one_by_one(s: MessageStore, topic: str, queue_id: int) -> Iterator[Message]:
    at = s.min_offset_in_queue(topic, queue_id)
    while at < s.max_offset_in_queue(topic, queue_id):
        result = s.get_message(topic, queue_id, at)
        yield from result.messages
        assert result.next_begin_offset > at
        at = result.next_begin_offset


def test_the_queues_of_real_brokers_equal_their_reads_one_by_one(golden: Golden) -> None:
    expected = golden.directory / "expected"
    with MessageStore.open(golden.store_root, expected, broker_version=golden.version) as s:
        compared = 0
        for topic in s.topics():
            for queue_id in s.queue_ids(topic):
                messages = list(map(of_message, read_one_by_one(s, topic, queue_id)))
                first = s.min_offset_in_queue(topic, queue_id)
                rows = s.read_arrow(topic, queue_id, first).read_all().to_pylist()
                assert messages == list(map(of_row, rows)), (topic, queue_id)
                compared += len(rows)
        assert compared


def test_a_scan_of_a_real_log_equals_a_search_for_everything(golden: Golden) -> None:
    with MessageStore.open(golden.store_root, broker_version=golden.version) as s:
        search = LogSearch(golden.store_root, s.config, MessageFilter())
        messages = [of_message(m) for m in until_damage(search.messages())]
        rows = [of_row(row) for batch in until_damage(s.scan()) for row in batch.to_pylist()]
        assert messages == rows


@pytest.fixture
def s(tmp_path: Path) -> Iterator[MessageStore]:
    """Open a store of 200 messages in many small files."""
    store_root = make_store(tmp_path / "store", numbered(200))
    dispatch_all(store_root, tmp_path / "out", CONFIG)
    with MessageStore.open(store_root, tmp_path / "out") as s:
        yield s


def queue_offsets(s: MessageStore, *where: Any) -> list[int]:
    reader = s.read_arrow("T", 0, *where, columns=["queue_offset"])
    return [n for batch in reader for n in batch.column(0).to_pylist()]


@pytest.mark.parametrize("begin", [0, 1, 99, 199, 200])
@pytest.mark.parametrize("count", [None, 0, 1, 64, 1000])
def test_any_part_of_a_queue_is_read(s: MessageStore, begin: int, count: int | None) -> None:
    end = 200 if count is None else min(begin + count, 200)
    assert queue_offsets(s, begin, count) == list(range(begin, end))


def test_gaps_that_a_broker_closed_keep_the_offsets_of_the_messages(tmp_path: Path) -> None:
    sent = displaced.numbered(0, 1, 5, 6)
    displaced.make(tmp_path / "store", sent)
    with MessageStore.open(tmp_path / "store") as s:
        expected = [m.queue_offset for m in read_one_by_one(s, sent[0].topic, 0)]
        reader = s.read_arrow(sent[0].topic, 0, 0, columns=["queue_offset"])
        assert reader.read_all().column(0).to_pylist() == expected
        assert len(expected) == 4


def test_damage_is_raised_after_the_messages_before_it(s: MessageStore) -> None:
    victim = s.get_message("T", 0, 120).messages[0]
    at = victim.commit_log_offset
    path = s.store_root / "commitlog" / f"{at - at % FILE_SIZE:020d}"
    data = bytearray(path.read_bytes())
    data[at % FILE_SIZE + victim.size - 1] ^= 0xFF  # the end of its properties
    data[at % FILE_SIZE + 4] ^= 0xFF  # its magic
    path.write_bytes(data)
    reader = s.read_arrow("T", 0, 0, columns=["queue_offset"])
    found: list[int] = []
    while len(found) < 120:
        found += reader.read_next_batch().column(0).to_pylist()
    assert found == list(range(120))
    with pytest.raises(DamageError, match=f"{path.name} at offset {at}"):
        reader.read_next_batch()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("T", 0, 0, None, ["colour"]), "a message has no column 'colour'"),
        (("T", 0, 0, None, []), "no column is named"),
        (("T", 7, 0), "has no queue 7 of topic 'T'"),
        (("Nope", 0, 0), "has no queue 0 of topic 'Nope'"),
        (("T", 0, 201), "offset 201 is outside queue 0 of topic 'T', which holds offsets 0 to 200"),
        (("T", 0, -1), "offset -1 is outside queue 0"),
    ],
)
def test_a_wrong_argument_is_refused_by_name(
    s: MessageStore, arguments: tuple[Any, ...], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        s.read_arrow(*arguments)


@pytest.mark.parametrize(
    "wanted",
    [
        MessageFilter(tags="TagA || TagB || A"),
        MessageFilter(keys=frozenset({"k7", "k150"})),
        MessageFilter(queue_id=0, from_offset=5000, to_offset=20_000),
        MessageFilter(topics=frozenset({"Other"})),
    ],
)
def test_a_filtered_scan_equals_a_search(golden: Golden, wanted: MessageFilter) -> None:
    with MessageStore.open(golden.store_root, broker_version=golden.version) as s:
        batches = until_damage(s.scan(wanted, ["commit_log_offset"]))
        found = [offset for batch in batches for offset in batch.column(0).to_pylist()]
        search = LogSearch(golden.store_root, s.config, wanted)
        assert [m.commit_log_offset for m in until_damage(search.messages())] == found


def test_duckdb_and_polars_take_the_readers_as_they_are(s: MessageStore) -> None:
    log = duckdb.from_arrow(s.scan(columns=["topic", "size"]))
    assert log.aggregate("count(*), sum(size) > 0").fetchall() == [(200, True)]
    frame = polars.from_arrow(s.read_arrow("T", 0, 150))
    assert isinstance(frame, polars.DataFrame)
    assert frame["queue_offset"].to_list() == list(range(150, 200))


def test_a_reader_ends_at_the_end_of_the_queue_at_the_time_of_the_call(tmp_path: Path) -> None:
    store_root = make_store(tmp_path / "store", numbered(50))
    dispatch_all(store_root, tmp_path / "out", CONFIG)
    with MessageStore.open(store_root, tmp_path / "out") as s:
        reader = s.read_arrow("T", 0, 0)
        make_store(store_root, numbered(80))
        dispatch_all(store_root, tmp_path / "out", CONFIG)
        assert reader.read_all().num_rows == 50
        assert s.read_arrow("T", 0, 0).read_all().num_rows == 80
