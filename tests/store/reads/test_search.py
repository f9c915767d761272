"""The search in the log: the same messages as a plain filter over all of them, in both orders."""

import re
import threading
import time
import zlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.commitlog.record import Message, decode_message
from store.config import StoreConfig
from store.errors import BodyTooLargeError, ConfigError, DamageError, LostDataError
from store.io.mapped_file import MappedFile, map_file
from store.reads.message_filter import MessageFilter
from store.reads.message_search import CLOCK_STEP_MS, LogSearch
from tests.conftest import Golden
from tests.logs.build import COMMIT, PREPARED, ROLLBACK, Batch, build_log, flatten, write_log
from tests.logs.build import Message as Sent
from tests.logs.random_logs import Mix, message_lists, random_messages
from tests.support.bulk_writer import BulkWriter
from tests.support.stores.golden import WITH_UNKNOWN_MAGIC, golden_slice
from tests.support.stores.written import TEMPLATES, corrupt, make_store

FILE_SIZE = 8192
CONFIG = replace(StoreConfig(), mapped_file_size_commit_log=FILE_SIZE, message_index_enable=False)
CLOSING = Sent(topic="Closing", properties=[("TAGS", "last")])  # the log must not end with zeros
BODIES = ["b", "^b+$", "B{9}", r"\x00", "ö", "no such text"]  # RE2 and re agree on these
START = 1_700_000_000_000
BODY_AT = 88  # in a record


def search(store_root: Path, wanted: MessageFilter, config: StoreConfig = CONFIG) -> list[Message]:
    """Return the matches, which must be the same in both orders."""
    found = list(LogSearch(store_root, config, wanted).messages())
    newest_first = list(LogSearch(store_root, config, wanted).messages(newest_first=True))
    assert offsets(found) == offsets(newest_first)[::-1]
    return found


def offsets(messages: list[Message]) -> list[int]:
    return [m.commit_log_offset for m in messages]


def is_match(m: Message, wanted: MessageFilter) -> bool:
    """Return whether a message matches, condition by condition."""
    tags = {tag.strip() for tag in wanted.tags.split("||")}
    return (
        (not wanted.topics or m.topic in wanted.topics)
        and (wanted.queue_id is None or m.queue_id == wanted.queue_id)
        and (wanted.from_time is None or m.store_timestamp >= wanted.from_time)
        and (wanted.to_time is None or m.store_timestamp <= wanted.to_time)
        and (wanted.from_offset is None or m.commit_log_offset >= wanted.from_offset)
        and (wanted.to_offset is None or m.commit_log_offset < wanted.to_offset)
        and (not wanted.keys or bool(wanted.keys & {m.uniq_key, *(m.keys or "").split(" ")} - {""}))
        and (wanted.tags == "*" or m.tags in tags)
        and all(m.properties.get(name) == value for name, value in wanted.properties.items())
        and (wanted.body is None or bool(re.search(wanted.body.encode(), m.body)))
    )


def random_filter(messages: list[Message], random: Random) -> MessageFilter:
    """Return a filter of a few conditions, most of them those of some message."""

    def pick() -> Message:
        return random.choice(messages)

    def around(value: int) -> int:
        return value + random.choice([-1, 0, 0, 1, 70, 5000])

    one = pick()
    keys = {one.uniq_key, *(one.keys or "k1").split(" "), "k2"} - {None, ""}
    tag = one.tags if one.tags and one.tags.strip() == one.tags and "|" not in one.tags else "TagA"
    choices = {
        "topics": frozenset({one.topic, random.choice(["none", pick().topic])}),
        "queue_id": one.queue_id,
        "from_time": around(one.store_timestamp),
        "to_time": around(pick().store_timestamp),
        "from_offset": around(one.commit_log_offset),
        "to_offset": around(pick().commit_log_offset),
        "keys": frozenset(random.sample(sorted(map(str, keys)), 1)),
        "tags": random.choice([tag, f"{tag} || TagB"]),
        "properties": dict(
            random.sample(sorted(one.properties.items()), min(1, len(one.properties)))
        ),
        "body": random.choice(BODIES),
    }
    names = random.sample(sorted(choices), random.choice([0, 1, 1, 2, 3]))
    return MessageFilter(**{name: choices[name] for name in names})  # type: ignore[arg-type]


def check(store_root: Path, sent: list[Sent | Batch], random: Random) -> None:
    latest = max((m.store_timestamp for m in flatten(sent)), default=START)
    closing = replace(CLOSING, store_timestamp=latest)
    write_log(build_log([*sent, closing], FILE_SIZE), store_root / "commitlog")
    (store_root / "abort").touch()  # a record that the version does not know ends the log
    stored = search(store_root, MessageFilter())
    for _ in range(12):
        wanted = random_filter(stored, random)
        expected = [m for m in stored if is_match(m, wanted)]
        assert offsets(expected) == offsets(search(store_root, wanted)), wanted


@settings(max_examples=30, deadline=None)
@given(message_lists(max_size=30), st.integers(0, 1 << 32))
def test_a_search_finds_what_a_plain_filter_finds(sent: list[Sent | Batch], seed: int) -> None:
    with TemporaryDirectory() as directory:
        check(Path(directory), sent, Random(seed))


@pytest.mark.parametrize("seed", range(4))
def test_a_search_of_a_longer_log_finds_what_a_plain_filter_finds(
    tmp_path: Path, seed: int
) -> None:
    random = Random(seed)
    check(tmp_path, random_messages(random, 600, Mix(multi_dispatch=False)), random)


@golden_slice
def test_every_message_of_a_broker_is_found(golden: Golden) -> None:
    if golden.name == WITH_UNKNOWN_MAGIC:
        pytest.skip("the log ends in damage")
    stored = decoded(golden)
    assert offsets(stored) == offsets(search(golden.store_root, MessageFilter(), golden.config))
    random = Random(golden.name)
    for _ in range(10):
        wanted = random_filter(stored, random)
        if golden.name.startswith("v-index-times"):  # its clock stepped back by days
            wanted = replace(wanted, from_time=None, to_time=None)
        expected = offsets([m for m in stored if is_match(m, wanted)])
        assert expected == offsets(search(golden.store_root, wanted, golden.config)), wanted


def decoded(golden: Golden) -> list[Message]:
    """Decode the whole log record by record; a torn last record ends it."""
    found = []
    splits = golden.config.splits_properties
    for directory in golden.config.commit_log_paths(golden.store_root):
        for path in sorted(directory.iterdir()):
            data, at = map_file(path).data, 0
            with suppress(DamageError):
                while True:
                    offset = int(path.name) + at
                    message, at = decode_message(data, at, offset=offset, splits_properties=splits)
                    found.append(message)
    return sorted(found, key=lambda m: m.commit_log_offset)


def test_half_and_rollback_messages_are_found(tmp_path: Path) -> None:
    keys = [("KEYS", "k1"), ("TAGS", "A")]
    sent = [Sent(sys_flag=flag, properties=keys) for flag in (0, PREPARED, COMMIT, ROLLBACK)]
    write_log(build_log(sent, FILE_SIZE), tmp_path / "commitlog")
    found = search(tmp_path, MessageFilter(keys=frozenset({"k1"}), tags="A"))
    assert [m.sys_flag for m in sent] == [m.sys_flag for m in found]


def test_a_clock_that_stepped_back_hides_no_match(tmp_path: Path) -> None:
    step = CLOCK_STEP_MS
    times = [
        START + n for n in (0, step, 2 * step, step, step + 1, 3 * step, 2 * step + 1, 9 * step)
    ]
    sent = [Sent(body=b"x" * 900, store_timestamp=at) for at in times]
    config = replace(CONFIG, mapped_file_size_commit_log=1100)
    write_log(build_log(sent, 1100), tmp_path / "commitlog")
    for begin in times:
        for end in times:
            wanted = MessageFilter(from_time=begin, to_time=end)
            found = [m.store_timestamp for m in search(tmp_path, wanted, config)]
            assert [at for at in times if begin <= at <= end] == found


def numbers(messages: Iterable[Message]) -> list[int]:
    """Return the numbers in the bodies of `make_store`'s messages."""
    return [int(re.findall(rb"[0-9]{8}", m.body)[0]) for m in messages if m.topic == "TopicA"]


@pytest.fixture
def small(tmp_path: Path) -> tuple[Path, StoreConfig]:
    """Return a store of 3,000 messages in files of 64 KiB."""
    return tmp_path, make_store(tmp_path, 3000)


def log_files(store_root: Path) -> list[Path]:
    return sorted((store_root / "commitlog").iterdir())


def test_damage_is_an_error_after_the_matches_before_it(small: tuple[Path, StoreConfig]) -> None:
    store_root, config = small
    everything = offsets(search(store_root, MessageFilter(), config))
    broken = next(at for at in everything if at >= 100_000)
    corrupt(log_files(store_root)[1], broken - 65536 + BODY_AT)
    for newest_first in (False, True):
        found: list[int] = []
        job = LogSearch(store_root, config, MessageFilter())
        matches = job.messages(newest_first=newest_first)
        with pytest.raises(DamageError) as caught:
            found.extend(m.commit_log_offset for m in matches)
        assert caught.value.offset == broken
        if newest_first:
            assert [at for at in everything if at >= 131072][::-1] == found
        else:
            assert [at for at in everything if at < broken] == found


@pytest.mark.parametrize("number", [0, -1])  # the first file, and the last
def test_every_order_passes_each_of_many_damaged_records(
    small: tuple[Path, StoreConfig], number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_root, config = small
    everything = offsets(search(store_root, MessageFilter(), config))
    file = log_files(store_root)[number]
    base = int(file.name)
    broken = [at for at in everything if base <= at < base + 65536][5:-5:7]
    for at in broken:
        corrupt(file, at - base + BODY_AT)
    waits: list[float] = []
    pools: list[ThreadPoolExecutor] = []

    def pool(threads: int, name: str) -> ThreadPoolExecutor:
        pools.append(ThreadPoolExecutor(threads, name))
        return pools[-1]

    monkeypatch.setattr("store.commitlog.parallel_scan.ThreadPoolExecutor", pool)
    monkeypatch.setattr("store.commitlog.scanner._waited", {})
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=waits.append)  # of this module alone
    monkeypatch.setattr("store.commitlog.scanner.time", clock)
    left = [at for at in everything if at not in broken]
    for newest_first, step in ((False, 1), (True, -1)):
        job = LogSearch(store_root, config, MessageFilter(), skip_damage=True)
        assert offsets(list(job.messages(newest_first=newest_first))) == left[::step]
        assert sorted(damage.begin for damage in job.damages) == broken
    assert len(waits) < 5  # not one for each record
    assert len(pools) == 2  # one for each search


def test_a_time_after_damage_reports_it(small: tuple[Path, StoreConfig]) -> None:
    store_root, config = small
    later = max(m.store_timestamp for m in search(store_root, MessageFilter(), config))
    corrupt(log_files(store_root)[-1], BODY_AT)  # no store time after it can be read
    with pytest.raises(DamageError):
        list(LogSearch(store_root, config, MessageFilter(from_time=later + 10**9)).messages())


def test_a_missing_file_is_an_error_unless_it_has_expired(
    small: tuple[Path, StoreConfig],
) -> None:
    store_root, config = small
    everything = offsets(search(store_root, MessageFilter(), config))
    for newest_first in (False, True):
        running = LogSearch(store_root, config, MessageFilter())
        found = running.messages(newest_first=newest_first)
        first = next(found)
        log_files(store_root)[0].unlink()
        rest = offsets([first, *found])
        assert set(everything) >= set(rest) >= {at for at in everything if at >= 131072}
    log_files(store_root)[1].unlink()
    for newest_first in (False, True):
        with pytest.raises(LostDataError):
            list(LogSearch(store_root, config, MessageFilter()).messages(newest_first=newest_first))


def test_a_file_that_expires_after_its_map_was_dropped_is_read_to_its_end(
    small: tuple[Path, StoreConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Maps are dropped when other reads of the process have mapped many other files."""
    store_root, config = small
    everything = offsets(search(store_root, MessageFilter(), config))
    monkeypatch.setattr("store.io.mapped_file._MAPS_MAX", 1)
    found = LogSearch(store_root, config, MessageFilter()).messages()
    first = next(found)
    second = log_files(store_root)[1]
    MappedFile(second, int(second.name), second.stat().st_size).view()  # one more map
    log_files(store_root)[0].unlink()
    assert offsets([first, *found]) == everything


def test_a_torn_tail_ends_the_search_with_a_warning(
    small: tuple[Path, StoreConfig], caplog: pytest.LogCaptureFixture
) -> None:
    store_root, config = small
    everything = offsets(search(store_root, MessageFilter(), config))
    (store_root / "abort").touch()
    corrupt(log_files(store_root)[-1], everything[-9] % 65536 + BODY_AT)
    assert everything[:-9] == offsets(search(store_root, MessageFilter(), config))
    assert f"the log ends at offset {everything[-9]}" in caplog.text


def test_a_search_stops_when_it_is_told(small: tuple[Path, StoreConfig]) -> None:
    store_root, config = small
    stop = threading.Event()
    reports: list[tuple[int, int]] = []

    def report(done: int, total: int) -> None:
        reports.append((done, total))
        if done:
            stop.set()

    wanted = MessageFilter(topics=frozenset({"none"}))
    assert not list(LogSearch(store_root, config, wanted, stop=stop).messages(report=report))
    assert len(reports) == 2
    assert 0 < reports[1][0] < reports[1][1] == reports[0][1]

    stop.clear()
    found = LogSearch(store_root, config, MessageFilter(), stop=stop).messages()
    next(found)
    stop.set()
    assert not list(found)


def add_report(reports: list[tuple[int, int]], done: int, total: int) -> None:
    reports.append((done, total))


def test_all_of_the_span_is_reported(small: tuple[Path, StoreConfig]) -> None:
    store_root, config = small
    for newest_first in (False, True):
        reports: list[tuple[int, int]] = []
        job = LogSearch(store_root, config, MessageFilter())
        report = partial(add_report, reports)
        list(job.messages(newest_first=newest_first, report=report))
        assert sorted(reports) == reports
        assert reports[-1] == (job.end, job.end)


def test_a_body_beyond_the_limit_is_an_error(tmp_path: Path) -> None:
    packed = Sent(body=zlib.compress(b"x" * 10_000), sys_flag=1)
    write_log(build_log([packed], FILE_SIZE), tmp_path / "commitlog")
    wanted = MessageFilter(body="^x+$")
    assert len(search(tmp_path, wanted)) == 1
    with pytest.raises(BodyTooLargeError):
        list(LogSearch(tmp_path, CONFIG, wanted, max_body_bytes=9_999).messages())


@pytest.mark.parametrize(
    "wrong",
    [
        {"body": "\udcff"},
        {"properties": {"a": "\ud800"}},
        {"body": "(a"},
        {"body": "(?=a)"},
        {"tags": " || "},
    ],
)
def test_a_malformed_condition_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        MessageFilter(**wrong)


@pytest.mark.parametrize("newest_first", [False, True])
def test_a_log_that_ends_with_a_blank_is_searched_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, newest_first: bool
) -> None:
    """The broker has filled a file, and has not written to the next one yet."""
    config = make_store(tmp_path, 1000)
    last = log_files(tmp_path)[-1]
    last.write_bytes(bytes(last.stat().st_size))
    found = list(LogSearch(tmp_path, config, MessageFilter()).messages(newest_first=newest_first))
    assert len(found) > 100
    assert "not searched" not in caplog.text


def test_following_yields_what_is_appended(tmp_path: Path) -> None:
    """The writer appends each next part when the previous one has been found."""
    config = make_store(tmp_path, 300)
    stop = threading.Event()
    job = LogSearch(tmp_path, config, MessageFilter(topics=frozenset({"TopicA"})), stop=stop)
    before = list(job.messages(newest_first=True))
    found = job.follow(job.end, poll_seconds=0.01)
    followed: list[int] = []
    for part in range(1, 12):
        with BulkWriter(tmp_path, config) as writer:
            writer.append_many(TEMPLATES, 300, first=300 * part)
        followed += numbers(islice(found, 200))
        if part in (4, 9):  # what has been read expires
            log_files(tmp_path)[0].unlink()
    stop.set()
    assert (list(found), len(before)) == ([], 200)
    assert len(log_files(tmp_path)) > 1
    assert [n for n in range(300, 3600) if n % 3 != 2] == followed


def test_following_continues_after_what_expired_unread(small: tuple[Path, StoreConfig]) -> None:
    store_root, config = small
    everything = offsets(search(store_root, MessageFilter(), config))
    log_files(store_root)[0].unlink()
    found = LogSearch(store_root, config, MessageFilter()).follow(0, poll_seconds=0.01)
    expected = [at for at in everything if at >= 65536]
    assert expected == offsets(list(islice(found, len(expected))))
