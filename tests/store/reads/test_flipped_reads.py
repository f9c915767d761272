"""Flip each byte of an OUTPUT's queue and index files: reads are correct, raise, or miss messages.

A read may miss a message only if the files cannot show that it exists; ``verify`` then finds the
flip. Undetectable by a read are flips of:

* a slot, or an entry's link to the previous one: they yield another key's chain in the slot, or
  none;
* an entry's hash that keeps the entry in the chain of its slot;
* a unit's tags code, in the unit or in its ext unit: a read with a tag filter skips the message;
* the size of an ext unit, which then appears not to exist (the tag is still compared);
* on a broker's files, which have no progress: an entry's offset (it may be the remains of a
  truncation of the log), the header (its times are returned as stored), and the end of a queue (its
  last units may be stale);
* on a dispatched OUTPUT with ``abort``, where a dispatch is running or has crashed: the end of a
  queue, in its last unit only (a unit that refers to no record may be in flight).

Reads do not rely on an entry's time, so its flips change nothing.
"""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

from store import Boundary, MessageStore, layout
from store.config import StoreConfig
from store.errors import StoreError
from streaming.queries.verify import verify
from tests.logs.build import Message, build_log, write_log
from tests.support.cases import stride
from tests.support.dispatching import dispatch_all
from tests.support.verify_stores import flip

CONFIG = StoreConfig(
    mapped_file_size_commit_log=4096,
    mapped_file_size_consume_queue=100,
    mapped_file_size_consume_queue_ext=130,
    max_hash_slot_num=5,
    max_index_num=13,
)
CONF = """
mappedFileSizeCommitLog=4096
mappedFileSizeConsumeQueue=100
mappedFileSizeConsumeQueueExt=130
maxHashSlotNum=5
maxIndexNum=13
"""
START = 1_700_000_000_000
SIZE = 256  # of each record: an offset with one bit flipped is often the offset of another record
TOPICS = ["TopicA", "TopicB"]
HIDDEN = {"slot", "prev_index", "key_hash", "tags_code", "ext size", "ext tags_code"}
UNIT_FIELDS = {"commit_log_offset", "size"}
HIDDEN_OF_BROKERS = {"phy_offset", "header", *UNIT_FIELDS}

Answers = dict[tuple[Path, str], Any]


class Dispatched(NamedTuple):
    """A store, an OUTPUT dispatched from it, and the answers of reads."""

    store: Path
    output: Path
    config: StoreConfig
    right: Answers


def messages() -> list[Message]:
    """Build records of one size: two topics, two queues, one of which begins at offset 2."""
    next_offsets = {("TopicA", 0): 0, ("TopicA", 1): 2, ("TopicB", 0): 0}
    sent = []
    for n in range(24):
        queue = list(next_offsets)[n * 7 % 3]
        properties = [("KEYS", f"k{n % 10} all"), ("TAGS", "AB"[n % 2])]
        message = Message(
            topic=queue[0],
            queue_id=queue[1],
            queue_offset=next_offsets[queue],
            properties=properties,
            store_timestamp=START + 1000 * n,
        )
        sent.append(replace(message, body=b"b" * (SIZE - 91 - 6 - 21)))
        next_offsets[queue] += 1
    return sent


def make(directory: Path, config: StoreConfig, *, is_brokers: bool, expired: int) -> Dispatched:
    store_root, output = directory / "store", directory / "out"
    files = build_log(messages(), config.mapped_file_size_commit_log)
    assert len(files) == 2
    write_log(files, store_root / "commitlog")
    (store_root / "broker.conf").write_text(
        CONF + f"enableConsumeQueueExt={str(config.enable_consume_queue_ext).lower()}\n"
    )
    dispatch_all(store_root, output, config)
    if is_brokers:
        shutil.rmtree(output / "reput")
    for base in sorted(files)[:expired]:
        (store_root / "commitlog" / f"{base:020d}").unlink()
    with MessageStore.open(store_root, output) as s:
        right = {
            (path.parent, name): ask()
            for path in built_files(output)
            for name, ask in questions(s, path).items()
        }
    return Dispatched(store_root, output, config, right)


def questions(s: MessageStore, path: Path) -> dict[str, Callable[[], Any]]:
    """Return the answers of all reads that involve a file.

    An answer is a tuple of physical offsets, or one number.
    """
    if path.parent.name == "index":
        return queries(s)
    queue = path.parent.parent.name, int(path.parent.name)
    asked: dict[str, Callable[[], Any]] = {
        "min": lambda: s.min_offset_in_queue(*queue),
        "max": lambda: s.max_offset_in_queue(*queue),
    }
    for at in (0, 1, 2, 4, 5, 7, 8, 9):
        for tags in ("*", "A", "B"):
            asked[f"get {at} {tags}"] = lambda n=at, t=tags: read_all(s, queue, n, t)
    for n in range(-1, 25, 3):
        for boundary in Boundary:
            asked[f"time {n} {boundary}"] = lambda t=START + 1000 * n, b=boundary: (
                s.offset_in_queue_by_time(*queue, t, b)
            )
    return asked


def queries(s: MessageStore) -> dict[str, Callable[[], Any]]:
    asked: dict[str, Callable[[], Any]] = {}
    for topic in TOPICS:
        for key in ("k1", "k4", "k9", "all"):
            for span in ((0, 2**62), (START + 5000, START + 15_000)):
                asked[f"query {topic} {key} {span}"] = lambda t=topic, k=key, r=span: tuple(
                    m.commit_log_offset for m in s.query_message(t, k, 64, *r).messages
                )
    return asked


def read_all(s: MessageStore, queue: tuple[str, int], at: int, tags: str) -> tuple[int, ...]:
    """Read from an offset to the end of the queue."""
    found: list[int] = []
    while True:
        result = s.get_message(*queue, at, 2, tags)
        if result.status not in {"FOUND", "NO_MATCHED_MESSAGE"}:
            return tuple(found)
        found += [m.commit_log_offset for m in result.messages]
        assert result.next_begin_offset > at
        at = result.next_begin_offset


def ask_again(made: Dispatched, path: Path) -> tuple[set[str], set[str]]:
    """Return the answers that now miss messages, and those that are wrong otherwise."""
    missing: set[str] = set()
    wrong: set[str] = set()
    with MessageStore.open(made.store, made.output) as s:
        for name, ask in questions(s, path).items():
            try:
                actual = ask()
            except StoreError:
                continue
            expected = made.right[path.parent, name]
            if actual != expected:
                is_subset = isinstance(actual, tuple) and set(actual) < set(expected)
                (missing if is_subset else wrong).add(name)
    return missing, wrong


def built_files(output: Path) -> list[Path]:
    kinds = ("consumequeue", "consumequeue_ext", "index")
    return [p for kind in kinds for p in sorted((output / kind).rglob("*")) if p.is_file()]


def field_at(made: Dispatched, path: Path, at: int) -> str:
    """Return the name of the field that a byte belongs to."""
    kind = path.relative_to(made.output).parts[0]
    if kind == "consumequeue":
        return "commit_log_offset" if at % 20 < 8 else "size" if at % 20 < 12 else "tags_code"
    if kind == "consumequeue_ext":
        in_unit = at % layout.EXT_UNIT_SIZE
        return "ext size" if in_unit < 2 else "ext tags_code" if in_unit < 10 else "ext other"
    entries_at = layout.index_entry_at(0, made.config.max_hash_slot_num)
    if at < layout.INDEX_HEADER_SIZE:
        return "header"
    if at < entries_at:
        return "slot"
    in_entry = (at - entries_at) % layout.INDEX_ENTRY_SIZE
    names = (("key_hash", 4), ("phy_offset", 12), ("time_diff_seconds", 16), ("prev_index", 20))
    return next(name for name, end in names if in_entry < end)


def is_in_last_unit(path: Path, at: int) -> bool:
    """Return whether a byte is in the last unit of a queue, after which its files hold zeros."""
    files = sorted(path.parent.iterdir())
    data = b"".join(file.read_bytes() for file in files)
    units = [data[i : i + 20] for i in range(0, len(data), 20)]
    last = max(n for n, unit in enumerate(units) if any(unit))
    return last == (files.index(path) * CONFIG.mapped_file_size_consume_queue + at) // 20


@stride(9)
@pytest.mark.parametrize(
    ("has_ext", "is_brokers", "expired", "has_abort"),
    [
        (False, False, 0, False),
        (True, False, 0, False),
        (False, True, 0, False),
        (False, False, 1, False),
        (False, False, 0, True),
    ],
    ids=["", "ext", "a broker's", "expired", "abort"],
)
def test_a_flipped_byte_is_never_a_wrong_answer(  # noqa: PLR0913 - they make up one OUTPUT
    tmp_path: Path, *, has_ext: bool, is_brokers: bool, expired: int, has_abort: bool, stride: int
) -> None:
    config = replace(CONFIG, enable_consume_queue_ext=has_ext)
    made = make(tmp_path, config, is_brokers=is_brokers, expired=expired)
    if has_abort:
        (made.output / layout.ABORT_FILE).touch()
    random = Random(5)
    hiding: dict[str, int] = {}
    for path in built_files(made.output):
        for at in range(0, path.stat().st_size, stride):
            mask = random.choice([1 << random.randrange(8), random.randrange(1, 256)])
            flip(path, at, mask)
            missing, wrong = ask_again(made, path)
            name = field_at(made, path, at)
            place = f"{path.relative_to(made.output)} {at} ^ {mask}: {name}"
            if (is_brokers or has_abort) and name in UNIT_FIELDS:
                # The last unit may be stale or in flight: then the queue ends before it.
                assert not missing | wrong or "max" in wrong, (place, missing, wrong)
                assert is_brokers or not wrong or is_in_last_unit(path, at), (place, wrong)
            else:
                assert not wrong, (place, wrong)
                assert not missing or name in HIDDEN or is_brokers, (place, missing)
            if missing:
                assert not verify(made.store, made.output, config).is_equal, place
                hiding[name] = hiding.get(name, 0) + 1
            flip(path, at, mask)
    allowed = HIDDEN_OF_BROKERS if is_brokers else UNIT_FIELDS if has_abort else set()
    assert hiding.keys() <= HIDDEN | allowed
    if stride == 1:
        assert hiding.keys() >= UNIT_FIELDS or not (is_brokers or has_abort), hiding
    assert {"slot", "key_hash", "tags_code"} & hiding.keys(), hiding
