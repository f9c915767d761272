"""A log that loses its tail after it was dispatched: OUTPUT is rolled back, and resumes.

A power loss leaves zeros in the tail from some byte on.
"""

import shutil
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from checkpoints.output import DispatchOutput
from store.config import StoreConfig
from store.errors import DamageError
from tests.logs.build import COMMIT, Message, build_log, encode, write_log
from tests.logs.record_kinds import KEYS_AND_TAGS, RECORD_KINDS, TAGS
from tests.model.dispatch import dispatch
from tests.model.tree import model_tree
from tests.support.cases import stride
from tests.support.dispatching import (
    Content,
    HastyDisk,
    assert_same_content,
    built_tree,
    dispatch_all,
    to_model_config,
)

FILE_SIZE = 1024
CONFIG = StoreConfig(
    mapped_file_size_commit_log=FILE_SIZE,
    mapped_file_size_consume_queue=40,
    mapped_file_size_consume_queue_ext=44,
    max_hash_slot_num=3,
    max_index_num=5,
    enable_consume_queue_ext=True,
    enable_multi_dispatch=True,
    enable_lmq=True,
)
KINDS = RECORD_KINDS | {
    "V2, short topic, no properties": Message("T", is_v2=True),
    "property CRC": Message("T", properties=KEYS_AND_TAGS),
    "property CRC alone": Message("T"),
    "multi-dispatch": Message("T"),
    "client batch": Message("T", properties=TAGS),
    "after a blank": Message("T", properties=TAGS),
}
HEAD = [Message("T", queue_offset=n, properties=[("KEYS", f"h{n}")]) for n in range(2)]
OTHER = [Message("O", queue_offset=n, body=b"other", properties=[("KEYS", "o k1")]) for n in (0, 1)]


def tail_of(kind: str) -> list[Message]:
    """Return three messages of a kind, as a broker numbers them."""
    message = KINDS[kind]
    is_queued = message.sys_flag in (0, COMMIT)
    first = len(HEAD) if message.topic == "T" else 0
    tail = [
        replace(
            message,
            queue_offset=first + n if is_queued else 0,
            store_timestamp=message.store_timestamp + 1500 * n,
        )
        for n in range(3)
    ]
    if kind == "multi-dispatch":
        names = ("INNER_MULTI_DISPATCH", "%LMQ%a,%LMQ%b")
        return [
            replace(m, properties=[names, ("INNER_MULTI_QUEUE_OFFSET", f"{n},{n}"), *TAGS])
            for n, m in enumerate(tail)
        ]
    if kind == "client batch":
        return [replace(m, store_timestamp=message.store_timestamp) for m in tail]
    return tail


def head_of(kind: str) -> list[Message]:
    """Return the messages before the tail; they may leave space for one record and a blank."""
    if kind != "after a blank":
        return HEAD
    filler = Message("F", body=b"")
    taken = sum(len(encode(m, 0)) for m in [*HEAD, filler, tail_of(kind)[0]])
    return [*HEAD, replace(filler, body=bytes(FILE_SIZE - 20 - taken))]


class Stage:
    """A log that ends with three records of a kind, and the OUTPUT that was dispatched from it."""

    def __init__(self, directory: Path, kind: str) -> None:
        self.config = replace(CONFIG, enabled_append_prop_crc="property CRC" in kind)
        self.store, self.output = directory / "store", directory / "output"
        self._whole = directory / "whole"
        self._expected: dict[tuple[int, ...], dict[str, Content]] = {}
        self.messages = [*head_of(kind), *tail_of(kind)]
        self.files = self.build(self.messages)
        self.records = dispatch(self.files, to_model_config(self.config)).records
        assert len(self.records) == len(self.messages)
        write_log(self.files, self.store / "commitlog")
        random = Random(kind)
        cuts = random.choice([(1,) * 5, (2, 2), (3, 1), ()])
        dispatch_all(self.store, self._whole, self.config, cuts=cuts)

    def build(self, messages: list[Message]) -> dict[int, bytes]:
        """Lay out messages in log files."""
        return build_log(messages, FILE_SIZE, prop_crc=self.config.enabled_append_prop_crc)

    def expected(self, messages: list[Message]) -> dict[str, Content]:
        """Return the model's dispatch of a log."""
        key = tuple(map(id, messages))
        if key not in self._expected:
            built = dispatch(self.build(messages), to_model_config(self.config))
            self._expected[key] = model_tree(built)
        return self._expected[key]

    def ends(self) -> list[tuple[int, int]]:
        """Return, for each record, its offset and the end of its last non-zero byte."""
        ends = []
        for record in self.records:
            begin, base = (
                record.commit_log_offset,
                record.commit_log_offset // FILE_SIZE * FILE_SIZE,
            )
            content = self.files[base][begin - base :][: record.size]
            ends.append((begin, begin + len(content.rstrip(b"\0"))))
        return ends

    def write(self, files: dict[int, bytes], *, has_abort: bool) -> None:
        """Replace the log."""
        for path in (self.store / "commitlog").iterdir():
            path.unlink()  # ext4 flushes a file that replaces another
        write_log(files, self.store / "commitlog")
        (self.store / "abort").unlink(missing_ok=True)
        if has_abort:
            (self.store / "abort").touch()

    def reset(self) -> None:
        """Restore OUTPUT as it was when the log was complete."""
        shutil.rmtree(self.output, ignore_errors=True)
        shutil.copytree(self._whole, self.output)

    def assert_follows(self, messages: list[Message]) -> None:
        """Dispatch the log, and compare OUTPUT with the model."""
        progress = dispatch_all(self.store, self.output, self.config)
        assert len(messages) == progress.messages
        assert_same_content(built_tree(self.output), self.expected(messages))


def zeroed(files: dict[int, bytes], at: int) -> dict[int, bytes]:
    """Return a log with zeros from an offset on."""
    return {
        base: content[: max(at - base, 0)].ljust(FILE_SIZE, b"\0")
        for base, content in files.items()
    }


def written_over(new: dict[int, bytes], old: dict[int, bytes]) -> dict[int, bytes]:
    """Return a log that was truncated without erasing, then appended to: ``new``, ``old``."""
    files = {}
    for base in sorted(new | old):
        content = new.get(base, b"").rstrip(b"\0")
        files[base] = content + old.get(base, bytes(FILE_SIZE))[len(content) :]
    return files


@stride(17)
@pytest.mark.parametrize("kind", KINDS)
def test_an_output_follows_a_log_cut_at_any_byte_of_its_last_records(
    tmp_path: Path, kind: str, stride: int
) -> None:
    stage = Stage(tmp_path, kind)
    ends = stage.ends()
    seen = set()
    for at in reversed(range(ends[-3][0], ends[-1][1], stride)):
        kept = sum(end <= at for _, end in ends)
        stage.reset()
        stage.write(zeroed(stage.files, at), has_abort=bool(at % 2))
        stage.assert_follows(stage.messages[:kept])
        if kept not in seen:
            seen.add(kept)
            others = [*stage.messages[:kept], *OTHER]
            stage.write(stage.build(others), has_abort=bool(at % 2))
            stage.assert_follows(others)
    assert seen == {len(ends) - 3, len(ends) - 2, len(ends) - 1}


@pytest.mark.parametrize("erased", [True, False], ids=["zeros", "stale"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_output_follows_a_log_cut_and_appended_to_since(
    tmp_path: Path, kind: str, erased: bool
) -> None:
    stage = Stage(tmp_path, kind)
    for lost in (1, 2, 3):
        others = [*stage.messages[:-lost], *OTHER]
        files = stage.build(others)
        stage.reset()
        stage.write(files if erased else written_over(files, stage.files), has_abort=not erased)
        stage.assert_follows(others)


def test_stale_records_after_a_shorter_log_are_damage_to_a_clean_dispatch(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "all")
    others = [*stage.messages[:-3], *OTHER]
    files = written_over(stage.build(others), stage.files)
    stage.reset()
    stage.write(files, has_abort=False)  # a clean dispatch stops after the new records
    with pytest.raises(DamageError) as caught:
        dispatch_all(stage.store, stage.output, stage.config)
    assert caught.value.offset == dispatch(files, to_model_config(stage.config)).end
    assert_same_content(built_tree(stage.output), stage.expected(others))


def test_an_output_is_rolled_back_no_further_than_the_previous_batch(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "all")
    begin = stage.records[-1].commit_log_offset
    cut = zeroed(stage.files, begin)
    targets = []
    for _ in range(5):
        stage.write(cut, has_abort=True)
        owned = DispatchOutput.open(stage.output, stage.store, stage.config, disk=HastyDisk())
        targets += [r.to_offset for r in owned.recovered]
        owned.close(clean=True)
        dispatch_all(stage.store, stage.output, stage.config)
        stage.write(stage.files, has_abort=True)
        dispatch_all(stage.store, stage.output, stage.config)
    assert targets == [begin] * 4  # the first start has nothing to roll back
