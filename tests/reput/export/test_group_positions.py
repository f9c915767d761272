"""A group's committed offsets are positions: how an export finds them in the log."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.logs.build import Message, encode
from tests.support.dispatching import dispatch_all
from tests.support.exporting import BEGIN, files_of, make_store, reput_here
from tests.support.stores.rocksdb import make_rocksdb
from tests.support.verify_stores import CONFIG

GAP = [0, 1, 7, 8]  # own queue offsets; a broker's queue has them at positions 0 to 3
UNSURE = "messages that G has consumed may be exported too"


def sent(own: Sequence[int]) -> list[Message]:
    return [
        Message("T", 0, n, body=f"{i}".encode(), store_timestamp=BEGIN + i)
        for i, n in enumerate(own)
    ]


class Case:
    """A store whose group G has committed one position, and an OUTPUT."""

    def __init__(self, parent: Path, own: Sequence[int]) -> None:
        self.own = own
        self.store = make_store(parent, sent(own))
        self.output, self.parent = parent / "output", parent
        sizes = "mappedFileSizeCommitLog=4096\nmappedFileSizeConsumeQueue=100\n"
        (self.store / "broker.conf").write_text(sizes)
        (self.store / "config").mkdir()

    def dispatch(self, *, fail_on_data_loss: bool = True) -> None:
        dispatch_all(self.store, self.output, CONFIG, fail_on_data_loss=fail_on_data_loss)

    def hand_over(self) -> None:
        """Make the queues of OUTPUT those of the broker."""
        shutil.copytree(self.output / "consumequeue", self.store / "consumequeue")

    def lose(self, first: int, last: int) -> None:
        """Overwrite records of the log, given by their numbers."""
        sizes = [len(encode(message, 0)) for message in sent(self.own)]
        begin, end = sum(sizes[:first]), sum(sizes[: last + 1])
        path = self.store / f"commitlog/{0:020d}"
        data = bytearray(path.read_bytes())
        data[begin:end] = b"\xff" * (end - begin)
        path.write_bytes(data)

    def export(
        self, capsys: pytest.CaptureFixture[str], position: int, *options: object
    ) -> tuple[list[int], str]:
        """Export what G has not consumed; return the own queue offsets and standard error."""
        offsets = f'{{"offsetTable":{{"T@G":{{0:{position}}}}}}}'
        (self.store / "config/consumerOffset.json").write_text(offsets)
        to = self.parent / f"to{position}"
        common = ["--to", to, "--not-consumed-by", "G", "--format", "jsonl"]
        code, _, err = reput_here(capsys, "export", self.store, *common, *options)
        rows = [
            json.loads(line)
            for path in files_of(to)
            for line in path.read_text("utf-8").splitlines()
        ]
        assert code == (0 if rows else 1), err
        rows.sort(key=lambda row: row["commit_log_offset"])
        return [row["queue_offset"] for row in rows], err


@pytest.fixture
def gap(tmp_path: Path) -> Case:
    case = Case(tmp_path, GAP)
    case.dispatch()
    return case


@pytest.mark.parametrize(
    ("position", "expected"),
    [(3, [8]), (2, [7, 8]), (4, []), pytest.param(1, [1, 7, 8], marks=pytest.mark.exhaustive)],
)
@pytest.mark.parametrize("through", ["store", "output"])
def test_an_intact_queue_translates_a_position_across_a_closed_gap(
    gap: Case, capsys: pytest.CaptureFixture[str], through: str, position: int, expected: list[int]
) -> None:
    if through == "store":
        gap.hand_over()
        shutil.rmtree(gap.output)
    options = ["--output", gap.output] if through == "output" else []
    exported, err = gap.export(capsys, position, *options)
    assert (exported, UNSURE in err) == (expected, False), err


def test_without_a_queue_too_much_is_exported_and_said_once(
    gap: Case, capsys: pytest.CaptureFixture[str]
) -> None:
    exported, err = gap.export(capsys, 3)
    assert exported == [7, 8]
    assert err.count(UNSURE) == 1
    assert "are in T/0" in err


def test_a_damaged_queue_is_replaced_by_that_of_output(
    gap: Case, capsys: pytest.CaptureFixture[str]
) -> None:
    gap.hand_over()
    queue = gap.store / f"consumequeue/T/0/{0:020d}"
    units = bytearray(queue.read_bytes())
    units[3 * 20 : 4 * 20] = units[:20]
    queue.write_bytes(units)
    assert gap.export(capsys, 3)[0] == [7, 8]
    shutil.rmtree(gap.parent / "to3")
    exported, err = gap.export(capsys, 3, "--output", gap.output)
    assert (exported, UNSURE in err) == ([8], False), err


def test_queues_in_rocksdb_need_an_output(gap: Case, capsys: pytest.CaptureFixture[str]) -> None:
    make_rocksdb(gap.store / "consumequeue")
    assert gap.export(capsys, 3)[0] == [7, 8]
    assert gap.export(capsys, 4, "--output", gap.output)[0] == []


@pytest.mark.parametrize("through", ["store", "output"])
@pytest.mark.parametrize("position", [3, 7])
def test_a_queue_rebuilt_across_lost_messages_is_not_trusted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], through: str, position: int
) -> None:
    case = Case(tmp_path, range(60))
    case.lose(2, 6)  # message 7 moves to position 2
    case.dispatch(fail_on_data_loss=False)
    options: list[object] = ["--fail-on-data-loss", "false"]
    if through == "store":
        case.hand_over()
    else:
        options += ["--output", case.output]
    exported, err = case.export(capsys, position, *options)
    assert (exported, UNSURE in err) == ([*range(7, 60)], True), err


def test_the_original_queue_is_trusted_where_the_log_is_damaged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = Case(tmp_path, range(60))
    case.dispatch()
    case.hand_over()
    case.lose(2, 4)
    exported, err = case.export(capsys, 6, "--fail-on-data-loss", "false")
    assert (exported, UNSURE in err) == ([*range(6, 60)], False), err


def test_a_queue_that_was_begun_again_is_exported_whole_unless_its_own_is_intact(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = [0, 1, 2, 3, 0, 1, 2]
    case = Case(tmp_path, own)
    case.dispatch()
    exported, err = case.export(capsys, 3)
    assert (exported, UNSURE in err) == (own, True)
    exported, err = case.export(capsys, 2, "--output", case.output)
    assert (exported, UNSURE in err) == (own, True)
    new = Case(tmp_path / "new", own)
    dispatch_all(new.store, new.output, CONFIG)
    queue = new.output / f"consumequeue/T/0/{0:020d}"
    units = bytearray(queue.read_bytes())
    size = len(encode(sent(own)[0], 0))
    for n in range(3):  # the units that a broker writes to the new queue
        units[20 * n : 20 * n + 8] = (size * (4 + n)).to_bytes(8, "big")
    units[60:100] = bytes(40)
    queue.write_bytes(units)
    new.hand_over()
    exported, err = new.export(capsys, 2)
    assert (exported, UNSURE in err) == ([2], False), err
    exported, err = new.export(capsys, 4)  # committed in the old queue
    assert (exported, UNSURE in err) == (own, True)


def test_a_position_beyond_the_log_exports_the_queue(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = Case(tmp_path, range(3))
    case.dispatch()
    exported, err = case.export(capsys, 9, "--output", case.output)
    assert (exported, UNSURE in err) == ([0, 1, 2], True)


def test_what_follows_the_end_of_the_queue_is_exported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = Case(tmp_path, GAP[:3])
    case.dispatch()
    case.hand_over()
    whole = Case(tmp_path / "whole", GAP)
    shutil.copytree(case.store / "consumequeue", whole.store / "consumequeue")
    exported, err = whole.export(capsys, 3)
    assert (exported, UNSURE in err) == ([8], False), err


def test_an_expired_position_exports_what_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = Case(tmp_path, range(60))
    case.dispatch()
    case.hand_over()
    (case.store / f"commitlog/{0:020d}").unlink()
    exported, err = case.export(capsys, 1)
    assert exported == list(range(60 - len(exported), 60))
    assert (0 < len(exported) < 59, UNSURE in err) == (True, False), err


def test_one_output_for_several_stores_is_refused(
    gap: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = Case(tmp_path / "other", GAP)
    group = ["--not-consumed-by", "G", "--format", "jsonl"]
    stores = [f"a={gap.store}", f"b={other.store}"]
    to, output = tmp_path / "to", ["--output", gap.output]
    code, _, err = reput_here(capsys, "export", *stores, "--to", to, *group, *output)
    assert (code, "give several as STORE:OUTPUT" in err) == (2, True), err
    for case in (gap, other):
        (case.store / "config/consumerOffset.json").write_text('{"offsetTable":{"T@G":{0:3}}}')
    code, out, err = reput_here(
        capsys, "export", f"{stores[0]}:{gap.output}", stores[1], "--to", to, *group, "--json"
    )
    assert code == 0, err
    assert [json.loads(line)["messages"] for line in out.splitlines()] == [1, 2]
    assert err.count(UNSURE) == 1
