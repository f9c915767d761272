"""The state of each pending message, in logs written here."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.config import BrokerVersion, StoreConfig
from store.errors import UnsupportedFormatError
from store.pending.broker_settings import HoldSettings, load_hold_settings
from store.pending.deliveries import Deliveries
from store.pending.find_pending import Pending, PendingFilter, find_pending
from store.pending.states import Kind
from tests.logs.build import COMMIT, Message, build_log, write_log
from tests.support.stores.written import corrupt

FILE_SIZE = 4096
CONFIG = replace(StoreConfig(), mapped_file_size_commit_log=FILE_SIZE)
START = 1_700_000_000_000
HOUR = 3_600_000
HALF, OP, TIMER = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "rmq_sys_wheel_timer"
MOVED, SCHEDULE = "TRANS_CHECK_MAX_TIME_TOPIC", "SCHEDULE_TOPIC_XXXX"
ALL = PendingFilter(with_finished=True)


def held(topic: str, key: str, at: int, *, real: str = "T", **more: Any) -> Message:
    """Return a message that the broker holds back since ``at`` ms after the start."""
    properties = {"UNIQ_KEY": key, "KEYS": f"k-{key}", "REAL_TOPIC": real, "REAL_QID": "3"}
    properties |= {name: str(value) for name, value in more.items() if name.isupper()}
    fields = {name: value for name, value in more.items() if not name.isupper()}
    return Message(topic, properties=[*properties.items()], store_timestamp=START + at, **fields)


def sent(key: str, at: int, topic: str = "T", **fields: Any) -> Message:
    """Return the message that the broker delivered."""
    properties = [("UNIQ_KEY", key)]
    return Message(topic, 3, properties=properties, store_timestamp=START + at, **fields)


def op(body: str, tag: str = "d") -> Message:
    return Message(OP, body=body.encode(), properties=[("TAGS", tag)])


def find(  # noqa: PLR0913 - the log, and what the call depends on
    store_root: Path,
    messages: Sequence[Message],
    *,
    now: int = 0,
    wanted: PendingFilter = ALL,
    config: StoreConfig = CONFIG,
    settings: HoldSettings | None = None,
) -> Pending:
    """Return the pending messages of a log, ``now`` ms after the start."""
    write_log(build_log([*messages, Message("Closing")], FILE_SIZE), store_root / "commitlog")
    return find_pending(store_root, config, wanted, now=START + now, settings=settings)


def states(found: Pending) -> dict[str, str]:
    """Return the state of each message by unique key."""
    rows = list(found.read_rows())
    assert len({row["uniq_key"] for row in rows}) == len(rows)
    return {row["uniq_key"]: row["state"] for row in rows}


def write_delays(store_root: Path, offsets: str) -> None:
    (store_root / "config").mkdir(parents=True)
    (store_root / "config" / "delayOffset.json").write_text(f'{{"offsetTable":{offsets}}}')


def test_a_delayed_message_is_waiting_then_overdue_then_delivered(tmp_path: Path) -> None:
    delayed = [held(SCHEDULE, f"u{n}", n, queue_id=0, queue_offset=n) for n in range(3)]
    found = find(tmp_path, [*delayed, sent("u0", 1000)], now=1002)
    assert states(found) == {"u0": "delivered", "u1": "overdue", "u2": "waiting"}
    first = next(found.read_rows())
    delivered_at = first.pop("delivered_commit_log_offset")
    assert delivered_at > 0
    assert first == {
        "kind": "delay", "state": "delivered", "topic": "T", "queue_id": 3, "uniq_key": "u0",
        "keys": "k-u0", "store_timestamp": START, "due_timestamp": START + 1000,
        "commit_log_offset": 0, "checks": None,
    }  # fmt: skip


def test_a_delayed_message_that_the_broker_passed_over_is_given_up(tmp_path: Path) -> None:
    delayed = [held(SCHEDULE, f"u{n}", n, queue_id=0, queue_offset=n) for n in range(4)]
    # The file may be newer than the log: what came of u2 is known only once u3 is delivered.
    for last, state in (("u1", "overdue"), ("u3", "given up")):
        store_root = tmp_path / last
        write_delays(store_root, "{1:3,2:5}")
        delivered = [sent(key, 2000) for key in sorted({"u1", last})]
        expected = {"u0": "given up", "u1": "delivered", "u2": state, "u3": "overdue"}
        expected[last] = "delivered"
        assert expected == states(find(store_root, [*delayed, *delivered], now=HOUR))


def test_no_message_is_given_up_where_its_delivery_may_be_damaged(tmp_path: Path) -> None:
    write_delays(tmp_path, "{1:2}")
    delayed = [held(SCHEDULE, f"u{n}", n, queue_id=0, queue_offset=n) for n in range(2)]
    messages = [*delayed, *(sent("x", n) for n in range(60)), sent("u1", 2000)]
    assert states(find(tmp_path, messages, now=HOUR)) == {"u0": "given up", "u1": "delivered"}
    corrupt(tmp_path / "commitlog" / f"{FILE_SIZE:020d}", 88)
    found = find_pending(tmp_path, CONFIG, ALL, now=START + HOUR)
    assert len(found.damages) == 1
    assert states(found) == {"u0": "overdue", "u1": "delivered"}


def test_a_level_without_a_delay_is_due_after_a_second(tmp_path: Path) -> None:
    config = replace(CONFIG, message_delay_level="1s 2h")
    delayed = [held(SCHEDULE, f"u{level}", 0, queue_id=level) for level in range(3)]
    due = find(tmp_path, delayed, config=config).rows["due_timestamp"].to_pylist()
    assert due == [START + 1000, START + 1000, START + 2 * HOUR]


def test_a_repeated_delivery_is_not_that_of_the_next_retry(tmp_path: Path) -> None:
    # The broker was killed after the first delivery, and repeated it before the second was due.
    first, again = sent("u", 1000, "%RETRY%G"), sent("u", 1500, "%RETRY%G")
    retries = [held(SCHEDULE, "u", at, real="%RETRY%G", queue_id=1) for at in (-5000, 1100)]
    rows = list(find(tmp_path, [retries[0], first, retries[1], again], now=2000).read_rows())
    assert [row["state"] for row in rows] == ["delivered", "waiting"]


def test_a_message_without_a_unique_key_is_found_by_its_body(tmp_path: Path) -> None:
    properties = [("REAL_TOPIC", "T"), ("REAL_QID", "0")]
    plain = [Message(SCHEDULE, body=b"%d" % n, properties=properties) for n in range(2)]
    delivered = Message("T", body=b"1", store_timestamp=START + 5000)
    rows = list(find(tmp_path, [*plain, delivered], now=HOUR).read_rows())
    assert [row["state"] for row in rows] == ["overdue", "delivered"]


def timer(key: str, at: int, due: int, **more: Any) -> Message:
    return held(TIMER, key, at, TIMER_OUT_MS=START + due, **more)


def test_a_rolled_timer_message_is_one_message(tmp_path: Path) -> None:
    rolled = [timer("u", at, HOUR, TIMER_ROLL_TIMES=n) for n, at in enumerate((0, 100, 200))]
    (row,) = find(tmp_path, rolled).read_rows()
    assert (
        row["kind"], row["state"], row["store_timestamp"], row["due_timestamp"],
    ) == ("timer", "waiting", START, START + HOUR)  # fmt: skip
    assert row["commit_log_offset"] > 0


def test_a_cancellation_names_a_message_of_its_slot(tmp_path: Path) -> None:
    messages = [
        *(timer(key, 0, HOUR) for key in ("same", "other-slot", "late", "free")),
        timer("c1", 1, HOUR + 1, TIMER_DEL_UNIQKEY="T+same"),
        timer("c2", 1, HOUR + 9000, TIMER_DEL_UNIQKEY="T+other-slot"),
        timer("c3", 1, HOUR, TIMER_DEL_UNIQKEY="T+late"),
        timer("c4", 1, HOUR, TIMER_DEL_UNIQKEY="free"),
        sent("late", HOUR),
    ]
    assert states(find(tmp_path, messages)) == {
        "same": "cancelled", "other-slot": "waiting", "late": "delivered", "free": "waiting",
    }  # fmt: skip


def test_what_a_cancellation_names_depends_on_the_release(tmp_path: Path) -> None:
    pairs = [("T+topic", "topic"), ("plain", "plain")]
    messages = [timer(key, 0, HOUR) for _, key in pairs]
    messages += [timer(f"c-{key}", 1, HOUR, TIMER_DEL_UNIQKEY=named) for named, key in pairs]
    for version, is_set, cancelled in (
        ("5.3.1", False, "plain"),
        ("5.3.2", False, "topic"),
        ("5.3.3", False, "topic"),
        ("5.4.0", False, "plain"),
        ("5.5.0", True, "topic"),
    ):
        store_root = tmp_path / f"{version}-{is_set}"
        config = replace(CONFIG, version=BrokerVersion.parse(version))
        settings = HoldSettings(delete_key_has_topic=is_set)
        found = states(find(store_root, messages, config=config, settings=settings))
        assert {"cancelled"} == {found[cancelled]}, version
        assert list(found.values()).count("cancelled") == 1


def test_a_cancelled_message_that_was_to_be_rolled_is_overdue_once_it_is_due(
    tmp_path: Path,
) -> None:
    messages = [timer("u", 0, HOUR), timer("c", 1, HOUR, TIMER_DEL_UNIQKEY="T+u")]
    for window, now, state in (
        (3600, HOUR - 1, "cancelled"),
        (3600, HOUR + 1, "overdue"),
        (3601, HOUR + 1, "cancelled"),
    ):
        settings = HoldSettings(timer_window_slots=window)
        store_root = tmp_path / f"{window}-{now}"
        assert {"u": state} == states(find(store_root, messages, now=now, settings=settings))


def test_a_cancelled_message_that_was_rolled_when_it_was_due_is_overdue(tmp_path: Path) -> None:
    messages = [
        timer("u", 0, HOUR),
        timer("c", 1, HOUR, TIMER_DEL_UNIQKEY="T+u"),
        timer("u", HOUR, HOUR, TIMER_ROLL_TIMES=1),
    ]
    assert states(find(tmp_path, messages, now=HOUR + 1)) == {"u": "overdue"}


def test_a_message_sent_twice_with_one_unique_key_is_two_messages(tmp_path: Path) -> None:
    born = (START - 10, START - 5)  # a producer sends the same object again
    messages = [timer("u", n, HOUR, born_timestamp=born[n]) for n in range(2)]
    rows = list(find(tmp_path, [*messages, sent("u", HOUR, born_timestamp=born[1])]).read_rows())
    assert [row["state"] for row in rows] == ["waiting", "delivered"]


def half(key: str, offset: int, at: int = 0, **more: Any) -> Message:
    return held(HALF, key, at, queue_offset=offset, **more)


def test_an_op_message_of_5_x_ends_several_half_messages(tmp_path: Path) -> None:
    messages = [*(half(f"u{n}", n) for n in range(6)), op("1,3,"), op("4"), op("5", "x"), op("?")]
    expected = {f"u{n}": "cancelled" if n in (1, 3, 4) else "waiting" for n in range(6)}
    assert expected == states(find(tmp_path, messages))


def test_a_commit_delivers_a_half_message_before_its_op_message(tmp_path: Path) -> None:
    committed = sent("u", 5, sys_flag=COMMIT, prepared_transaction_offset=0)
    (row,) = find(tmp_path, [half("u", 0), committed]).read_rows()
    assert (row["state"], row["checks"]) == ("delivered", 0)
    assert row["delivered_commit_log_offset"] > 0


def test_a_commit_may_be_delayed_in_turn(tmp_path: Path) -> None:
    for topic, more in ((SCHEDULE, {}), (TIMER, {"TIMER_OUT_MS": START + HOUR})):
        ends = {"sys_flag": COMMIT, "prepared_transaction_offset": 0}
        messages = [half("u", 0), held(topic, "u", 5, **ends, **more)]
        rows = list(find(tmp_path / topic, messages).read_rows())
        assert sorted(row["state"] for row in rows) == ["delivered", "waiting"]
        assert {row["kind"] for row in rows if row["state"] == "delivered"} == {"half"}


def test_an_op_message_ends_no_later_half_message(tmp_path: Path) -> None:
    assert states(find(tmp_path, [op("0"), half("u", 0)])) == {"u": "waiting"}


def test_the_newest_copy_of_a_checked_half_message_decides(tmp_path: Path) -> None:
    copies = [half("u", n, n, TRANSACTION_CHECK_TIMES=n) for n in range(1, 4)]
    found = find(tmp_path / "first", [*copies, op("1,2,")], now=HOUR)
    (row,) = found.read_rows()
    assert (row["state"], row["checks"], row["store_timestamp"]) == ("overdue", 3, START + 1)
    assert states(find(tmp_path / "newest", [*copies, op("3")])) == {"u": "cancelled"}


def test_a_copy_within_the_immunity_time_ends_with_the_first(tmp_path: Path) -> None:
    copies = [half("u", 7), half("u", 9, 1, TRAN_PREPARED_QUEUE_OFFSET=7)]
    assert states(find(tmp_path / "a", copies)) == {"u": "waiting"}
    assert states(find(tmp_path / "b", [*copies, op("7")])) == {"u": "cancelled"}


def test_a_half_message_is_first_checked_after_its_own_time(tmp_path: Path) -> None:
    messages = [half("u", 0), half("v", 1, CHECK_IMMUNITY_TIME_IN_SECONDS=60)]
    due = find(tmp_path, messages).rows["due_timestamp"].to_pylist()
    assert due == [START + 6000, START + 60_000]


def test_a_half_message_that_was_moved_away_is_given_up(tmp_path: Path) -> None:
    messages = [half("u", 0, TRANSACTION_CHECK_TIMES=15), held(MOVED, "u", 9), half("v", 1)]
    assert states(find(tmp_path, messages)) == {"u": "given up", "v": "waiting"}


def test_kinds_whose_state_is_in_rocksdb_are_left_out_and_named(tmp_path: Path) -> None:
    (tmp_path / "broker.conf").write_text("timerRocksDBEnable=true\ntransRocksDBEnable=true\n")
    settings = load_hold_settings(tmp_path)
    log = [timer("t", 0, HOUR), half("h", 0), held(SCHEDULE, "d", 0, DELAY="3")]
    found = find(tmp_path, log, settings=settings)
    assert list(states(found)) == ["d"]
    assert [note.split()[0] for note in found.notes()] == ["timer", "half"]
    for kind, setting in ((Kind.TIMER, "timerRocksDBEnable"), (Kind.HALF, "transRocksDBEnable")):
        with pytest.raises(UnsupportedFormatError, match=f"{setting}=true"):
            find(tmp_path, log, settings=settings, wanted=PendingFilter(kinds=frozenset({kind})))
    only = PendingFilter(kinds=frozenset({Kind.DELAY}))
    assert list(states(find(tmp_path, log, settings=settings, wanted=only))) == ["d"]


def test_conditions_select_rows(tmp_path: Path) -> None:
    messages = [
        held(SCHEDULE, "a", 0, queue_id=0),
        held(SCHEDULE, "b", 0, queue_id=17, real="U"),
        timer("c", 0, 1500),
        half("d", 0),
        sent("a", 1000),
    ]
    for wanted, expected in (
        (PendingFilter(), "cdb"),
        (ALL, "acdb"),
        (PendingFilter(only_overdue=True), "c"),
        (PendingFilter(topics=frozenset("U")), "b"),
        (PendingFilter(kinds=frozenset((Kind.TIMER, Kind.HALF))), "cd"),
        (PendingFilter(due_before=START + 1501), "c"),
        (PendingFilter(due_before=START + 1500), ""),
    ):
        rows = find(tmp_path, messages, now=2000, wanted=wanted).read_rows()
        assert expected == "".join(row["uniq_key"] for row in rows)


def test_the_summary_counts_by_topic_and_hour(tmp_path: Path) -> None:
    messages = [timer(f"u{n}", 0, n * HOUR // 2, real="TU"[n % 2]) for n in range(1, 5)]
    rows = find(tmp_path, messages, now=HOUR + 1).summary().rows()
    summary = [
        (row.pop("topic"), row.pop("hour"), {state: n for state, n in row.items() if n})
        for row in rows
    ]
    hour = (START // HOUR + 1) * HOUR  # the log starts at 22:13:20
    assert [
        ("T", hour, {"overdue": 1}), ("T", hour + HOUR, {"waiting": 1}),
        ("U", START // HOUR * HOUR, {"overdue": 1}), ("U", hour, {"waiting": 1}),
    ] == summary  # fmt: skip


def test_damage_is_listed_and_the_rest_is_read(tmp_path: Path) -> None:
    messages = [held(SCHEDULE, f"u{n}", n, queue_id=0) for n in range(60)]
    write_log(build_log(messages, FILE_SIZE), tmp_path / "commitlog")
    corrupt(tmp_path / "commitlog" / f"{FILE_SIZE:020d}", 88)
    found = find_pending(tmp_path, CONFIG, ALL, now=START)
    assert [damage.begin for damage in found.damages] == [FILE_SIZE]
    assert found.rows.num_rows == 59


def test_a_log_without_held_messages_has_no_rows(tmp_path: Path) -> None:
    found = find(tmp_path, [sent("u", 0)])
    assert (found.rows.num_rows, found.summary().count) == (0, 0)


small = st.integers(0, 5)


@given(
    st.lists(st.tuples(small, st.integers(0, 40), st.integers(0, 40)), max_size=12),
    st.lists(st.tuples(small, st.integers(0, 40), st.integers(0, 40)), max_size=12),
)
def test_first_after_equals_a_plain_loop(
    held_rows: list[tuple[int, int, int]], sent_rows: list[tuple[int, int, int]]
) -> None:
    def columns(rows: list[tuple[int, int, int]]) -> list[Any]:
        return list(np.array(rows, np.int64).reshape(-1, 3).T)

    keys = [key for key, _, _ in held_rows]
    # Times follow the order of the log, as a broker's do.
    by_offset = sorted(sent_rows, key=lambda row: row[1])
    times = sorted(time for _, _, time in sent_rows)
    ordered = [(k, o, t) for (k, o, _), t in zip(by_offset, times, strict=True)]
    expected = [
        min(
            (
                offset
                for other, offset, time in ordered
                if other == key and offset > at and (keys.count(key) == 1 or time >= due)
            ),
            default=-1,
        )
        for key, at, due in held_rows
    ]
    found = Deliveries(*columns(ordered)).first_after(*columns(held_rows))
    assert expected == found.tolist()


def test_keys_are_read_from_all_files_in_the_order_of_the_rows(tmp_path: Path) -> None:
    messages = [held(SCHEDULE, f"u{n}", 100 - n, queue_id=0) for n in range(60)]
    found = find(tmp_path, messages)
    assert len(list((tmp_path / "commitlog").iterdir())) > 2
    keys = [f"u{n}" for n in reversed(range(60))]  # by due time
    assert keys == [row["uniq_key"] for row in found.read_rows()]
    assert [f"k-{key}" for key in keys[7:30]] == [row["keys"] for row in found.read_rows(7, 23)]


def test_a_message_whose_file_has_expired_since_is_left_out(tmp_path: Path) -> None:
    found = find(tmp_path, [held(SCHEDULE, f"u{n}", n, queue_id=0) for n in range(60)])
    sizes = {offset // FILE_SIZE for offset in found.rows["commit_log_offset"].to_pylist()}
    assert len(sizes) > 2
    (tmp_path / "commitlog" / f"{0:020d}").unlink()
    offsets = [row["commit_log_offset"] for row in found.read_rows()]
    assert offsets == [at for at in found.rows["commit_log_offset"].to_pylist() if at >= FILE_SIZE]


def test_a_real_topic_that_cannot_be_one_is_not_kept(tmp_path: Path) -> None:
    found = find(tmp_path, [held(SCHEDULE, "u", 0, real="T" * 256, queue_id=0)])
    assert [row["topic"] for row in found.read_rows()] == [SCHEDULE]
