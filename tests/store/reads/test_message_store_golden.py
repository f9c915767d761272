"""The answers of MessageStore on the stores of real brokers, compared with the brokers' answers.

They differ where the design promises more than a broker does: a colliding tag or key is never
returned, no message is returned twice, and a query by time range misses nothing.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from store import Boundary, Message, MessageStore
from store.commitlog.record import decode_message
from store.errors import ConfigError, DamageError
from store.io.mapped_file import map_file
from tests.conftest import Golden
from tests.support.reads_scan import is_lower, is_rising, is_upper
from tests.support.stores.golden import dispatch_golden, golden_slice

Answers = dict[str, Any]
GOLDEN = Path(__file__).parents[2] / "golden"


@pytest.fixture
def answers(golden: Golden) -> Answers:
    return dict(json.loads((golden.directory / "answers.json").read_text("utf-8")))


@pytest.fixture
def store(golden: Golden) -> Iterator[MessageStore]:
    """Open the broker's log with the queues and the index that the same broker wrote."""
    expected = golden.directory / "expected"
    with MessageStore.open(golden.store_root, expected, broker_version=golden.version) as s:
        yield s


def commit_log_files(golden: Golden) -> list[Path]:
    paths = golden.config.commit_log_paths(golden.store_root)
    return [file for path in paths for file in path.iterdir()]


def all_messages(golden: Golden) -> list[Message]:
    """Decode the whole log record by record; a torn last record ends it."""
    found = []
    splits = golden.config.splits_properties
    for path in sorted(commit_log_files(golden), key=lambda path: path.name):
        data, at = map_file(path).data, 0
        with suppress(DamageError):
            while True:
                offset = int(path.name) + at
                message, at = decode_message(data, at, offset=offset, splits_properties=splits)
                found.append(message)
    return found


def comparable(answers: Answers) -> list[Answers]:
    """Return the queues whose bounds the broker reports correctly.

    A broker that starts on a log from offset 0 counts pre-fill units as entries (4.x always does),
    and one entry too many if the last queue file is empty.
    """
    return [
        q
        for q in answers["queues"]
        if not q["max_offset"]
        or (
            q["earliest_message_time"] != -1
            and dict(q["store_time_at"]).get(q["max_offset"] - 1) != -1
        )
    ]


def bounds(s: MessageStore, queues: list[Answers]) -> list[tuple[int, int, int]]:
    return [
        (
            s.min_offset_in_queue(q["topic"], q["queue_id"]),
            s.max_offset_in_queue(q["topic"], q["queue_id"]),
            s.earliest_message_time(q["topic"], q["queue_id"]),
        )
        for q in queues
    ]


def expected_bounds(queues: list[Answers]) -> list[tuple[int, int, int]]:
    return [(q["min_offset"], q["max_offset"], q["earliest_message_time"]) for q in queues]


def test_log_and_queues_have_the_brokers_bounds(store: MessageStore, answers: Answers) -> None:
    assert store.min_phy_offset() == answers["min_phy_offset"]
    assert store.max_phy_offset() == answers["max_phy_offset"]
    queues = comparable(answers)
    assert bounds(store, queues) == expected_bounds(queues)
    listed = {(t, i) for t in store.topics() for i in store.queue_ids(t)}
    assert {(q["topic"], q["queue_id"]) for q in answers["queues"] if q["max_offset"]} == listed


@pytest.mark.parametrize("golden", [GOLDEN / "g6b.tar.xz"], indirect=True, ids=["g6b"])
def test_stale_units_do_not_count(golden: Golden, answers: Answers) -> None:
    crashed = golden.directory / "crashed"  # the queues and the index were ahead of the log
    with MessageStore.open(golden.store_root, crashed, broker_version=golden.version) as s:
        assert bounds(s, answers["queues"]) == expected_bounds(answers["queues"])
        assert s.query_message("OrderTopic", "k97").messages


def test_store_times_equal_the_brokers(store: MessageStore, answers: Answers) -> None:
    for q in answers["queues"]:
        for offset, expected in [*q["store_time_at"][:3], *q["store_time_at"][3::7]]:
            actual = store.message_store_timestamp(q["topic"], q["queue_id"], offset)
            assert expected == actual, (q["topic"], q["queue_id"], offset)


@golden_slice
def test_time_lookups_are_the_brokers_or_better(store: MessageStore, answers: Answers) -> None:
    for q in answers["queues"]:
        queue = q["topic"], q["queue_id"]
        first, end = store.min_offset_in_queue(*queue), store.max_offset_in_queue(*queue)
        times = [store.message_store_timestamp(*queue, n) for n in range(first, end)]
        for timestamp, *found in q["offset_by_time"][::7]:
            if len(found) < 3:
                continue  # earlier than 5.1.4, or the call threw
            _, *expected = found
            actual = [store.offset_in_queue_by_time(*queue, timestamp, b) for b in Boundary]
            if expected != actual:  # a broker's answer may be no crossing point then
                assert not is_rising(times), (queue, timestamp)
                assert is_lower(times, timestamp, actual[0] - first), (queue, timestamp)
                assert is_upper(times, timestamp, actual[1] - first), (queue, timestamp)


def test_get_message_answers_as_the_broker(store: MessageStore, answers: Answers) -> None:
    for q in comparable(answers):
        for request in q["get_message"][::5]:
            check_get(store, (q["topic"], q["queue_id"]), request)


def check_get(store: MessageStore, queue: tuple[str, int], request: Answers) -> None:
    """Compare one answer, without the messages whose tag merely collides with a wanted one."""
    tags = request["filter"] or "*"
    actual = store.get_message(*queue, request["offset"], request["max_nums"], tags)
    wanted = {tag.strip() for tag in tags.split("||")}
    looked = [store.look_message_by_offset(o) for o in request["phy_offsets"]]
    real = [m for m in looked if m is not None and (tags == "*" or m.tags in wanted)]
    assert [m.commit_log_offset for m in real] == [m.commit_log_offset for m in actual.messages]
    if len(real) == len(looked):
        fields = ("status", "next_begin_offset", "min_offset", "max_offset")
        assert [request[f] for f in fields] == [getattr(actual, f) for f in fields], request


def test_a_message_is_found_where_the_broker_found_it(
    store: MessageStore, answers: Answers
) -> None:
    for look in answers["look"]:
        found = store.look_message_by_offset(look["phy_offset"])
        if not look.get("found") or look["commit_log_offset"] != look["phy_offset"]:
            assert found is None, look  # possibly bytes of an old record in a blank area
            continue
        assert found is not None, look
        assert look["properties"] == sorted([*p] for p in found.properties.items())
        assert look["queue_offset"] == found.queue_offset
        assert look["store_size"] == found.size


def test_a_query_has_every_match_and_nothing_else(golden: Golden, answers: Answers) -> None:
    # A broker's recovery after a crash loses index entries; a rebuilt index has them all.
    with MessageStore.open(
        golden.store_root, golden.expected, broker_version=golden.version
    ) as store:
        if golden.config.message_index_enable:
            check_queries(golden, store, answers)
        else:
            with pytest.raises(ConfigError, match="index is off"):
                store.query_message("MyTopic", "k1")


def check_queries(golden: Golden, store: MessageStore, answers: Answers) -> None:
    """Compare all queries with a scan of the log itself."""
    messages = [m for m in all_messages(golden) if m.sys_flag & 0xC != 0xC]
    for q in answers["query"]:
        kind = q.get("index_type") or "K"
        args = (q["topic"], q["key"], q["max_num"], q["begin"], q["end"], kind)
        actual = store.query_message(*args)
        matches = [m for m in messages if is_match(m, q, kind)]
        newest = matches[-q["max_num"] :] if q["max_num"] else []
        assert [m.commit_log_offset for m in newest] == [
            m.commit_log_offset for m in actual.messages
        ], q
        assert actual.truncated == (len(matches) > q["max_num"])
        if actual.messages and q["phy_offsets"]:
            assert q["index_last_update_timestamp"] == actual.index_last_update_timestamp
            assert q["index_last_update_phyoffset"] == actual.index_last_update_phy_offset


def is_match(m: Message, q: Answers, kind: str) -> bool:
    if m.topic != q["topic"] or not q["begin"] <= m.store_timestamp <= q["end"]:
        return False
    if kind == "T":
        return m.tags == q["key"]
    return q["key"] in filter(None, [m.uniq_key, *(m.keys or "").split(" ")])


@golden_slice
def test_a_dispatched_output_answers_as_the_brokers(
    golden: Golden, answers: Answers, tmp_path: Path
) -> None:
    if golden.expected.name != "expected":
        pytest.skip("the answers are not those of queues dispatched from the log")
    dispatch_golden(golden, tmp_path)
    with MessageStore.open(golden.store_root, tmp_path) as s:
        assert s.config.shape() == golden.config.shape()
        queues = comparable(answers)
        assert bounds(s, queues) == expected_bounds(queues)
        for q in queues:
            for request in q["get_message"][::41]:
                check_get(s, (q["topic"], q["queue_id"]), request)
        for q in answers["query"][::5] if golden.config.message_index_enable else ():
            args = (q["topic"], q["key"], q["max_num"], q["begin"], q["end"])
            found = s.query_message(*args, q.get("index_type") or "K")
            if found.messages and q["phy_offsets"]:
                assert q["index_last_update_timestamp"] == found.index_last_update_timestamp
