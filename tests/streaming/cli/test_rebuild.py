"""``reput rebuild``: a damaged queue is found, rebuilt from the log, and then equal."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from checkpoints.root import DispatchRoot
from store import MessageStore
from store.commitlog.record import NewMessage, make_properties
from store.commitlog.writer import CommitLogWriter
from store.config import StoreConfig
from streaming.cli import run
from tests.support.dispatching import (
    HastyDisk,
    assert_same_content,
    assert_same_store,
    dispatch_all,
    tree,
)
from tests.support.stores.aged import expected_root, log_files, sent
from tests.support.stores.written import make_store
from tests.support.verify_stores import (
    CONFIG,
    VARIANTS,
    flip,
    forget_progress,
    messages,
    write_store,
)


@pytest.fixture(params=VARIANTS)
def config(request: pytest.FixtureRequest) -> StoreConfig:
    return VARIANTS[str(request.param)]


@pytest.fixture
def made(tmp_path: Path, config: StoreConfig) -> tuple[Path, Path]:
    """Return a store and a root dispatched from it."""
    store, output = write_store(tmp_path, sent()), tmp_path / "output"
    dispatch_all(store, output, config, one_by_one=True)
    return store, output


def reput(command: str, roots: tuple[Path, Path], *options: str) -> int:
    store, output = roots
    return run([command, str(store), "--output", str(output), *options])


def rebuild(
    roots: tuple[Path, Path], capture: pytest.CaptureFixture[str], *options: str
) -> tuple[int, list[dict[str, Any]], str]:
    capture.readouterr()
    code = reput("rebuild", roots, "--json", *options)
    out, err = capture.readouterr()
    return code, [json.loads(line) for line in out.splitlines()], err


def flip_first(queue: Path) -> None:
    flip(min(queue.iterdir()), 5)


def cut_last(queue: Path) -> None:
    with max(queue.iterdir()).open("r+b") as file:
        file.truncate(17)


def remove_middle(queue: Path) -> None:
    files = sorted(queue.iterdir())
    files[len(files) // 2].unlink()


def remove_queue(queue: Path) -> None:
    shutil.rmtree(queue)


def remove_topic(queue: Path) -> None:
    shutil.rmtree(queue.parent)


def add_file(queue: Path) -> None:
    last = max(queue.iterdir())
    base = int(last.name) + last.stat().st_size
    (queue / f"{base:020}").write_bytes(last.read_bytes())


def damage_ext(queue: Path) -> None:
    ext = queue.parents[2] / "consumequeue_ext" / queue.relative_to(queue.parents[1])
    if not ext.is_dir():
        pytest.skip("no ext")
    flip(min(ext.iterdir()), 5)
    max(ext.iterdir()).unlink()


DAMAGES = [
    flip_first, cut_last, remove_middle, remove_queue, remove_topic, add_file, damage_ext,
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda d: str(d.__name__))
@pytest.mark.parametrize("topic", ["T", "Rare"])
def test_damage_is_found_and_the_rebuilt_queue_is_equal(
    made: tuple[Path, Path],
    topic: str,
    damage: Callable[[Path], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    output = made[1]
    before = tree(output)
    damage(output / "consumequeue" / topic / "0")
    assert reput("verify", made) == 1
    code, (queue,), _ = rebuild(made, capsys, "--topic", topic)
    count = sum(m.topic == topic for m in sent())
    assert (code, queue["rebuilt"], queue["max_offset"]) == (0, True, count)
    assert (queue["topic"], queue["first_offset"], queue["repeated"]) == (topic, 0, 0)
    after = tree(output)
    del after["reput/progress"], before["reput/progress"]  # a start writes its time
    assert_same_content(after, before)
    assert reput("verify", made) == 0


def test_only_the_selected_queues_are_rebuilt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = [m for n in range(12) for m in
            (replace(messages(12)[n], queue_id=q) for q in (0, 1))]  # fmt: skip
    roots = write_store(tmp_path, both), tmp_path / "output"
    dispatch_all(*roots, CONFIG)
    directory = roots[1] / "consumequeue/TopicTest"
    for queue_id in ("0", "1"):
        flip_first(directory / queue_id)
    damaged = tree(directory / "1")
    code, (queue,), _ = rebuild(roots, capsys, "--topic", "TopicTest", "--queue", "0")
    assert (code, queue["queue_id"], tree(directory / "1")) == (0, 0, damaged)
    assert reput("verify", roots) == 1
    code, queues, _ = rebuild(roots, capsys, "--topic", "TopicTest")
    assert [q["queue_id"] for q in queues] == [0, 1]
    assert reput("verify", roots) == 0


def test_units_of_a_multi_dispatch_are_rebuilt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = VARIANTS["lmq"]
    roots = write_store(tmp_path, sent()), tmp_path / "output"
    dispatch_all(*roots, config)
    before = tree(roots[1] / "consumequeue")
    flip_first(roots[1] / "consumequeue/%LMQ%a/0")
    code, (queue,), _ = rebuild(roots, capsys, "--topic", "%LMQ%a")
    assert (code, queue["rebuilt"], tree(roots[1] / "consumequeue")) == (0, True, before)


def test_a_dispatch_resumes_as_if_nothing_had_happened(
    tmp_path: Path, config: StoreConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    store, output = write_store(tmp_path, sent(60)), tmp_path / "output"
    dispatch_all(store, output, config)
    write_store(tmp_path, sent())
    flip_first(output / "consumequeue/T/0")
    code, (queue,), _ = rebuild((store, output), capsys, "--topic", "T")
    assert (code, queue["max_offset"]) == (0, sum(m.topic == "T" for m in sent(60)))
    dispatch_all(store, output, config)
    dispatch_all(store, tmp_path / "undisturbed", config)
    assert_same_store(output, tmp_path / "undisturbed")


def test_what_a_broker_drops_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = [*messages(8), *messages(3, first=4), *messages(2, first=20)]
    roots = write_store(tmp_path, odd), tmp_path / "output"
    dispatch_all(*roots, CONFIG)
    flip_first(roots[1] / "consumequeue/TopicTest/0")
    code, (queue,), _ = rebuild(roots, capsys, "--topic", "TopicTest")
    assert (code, queue["repeated"], queue["gaps"], queue["max_offset"]) == (0, 3, 2, 10)
    summary = "dropped 3 messages (queue offset repeated) and placed 2 lower"
    assert reput("rebuild", roots, "--topic", "TopicTest") == 0
    assert summary in capsys.readouterr().out
    assert reput("topics", roots) == 0
    assert summary in capsys.readouterr().out
    assert reput("topics", roots, "--json") == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(r["repeated"], r["gaps"]) for r in rows if r["row"] == "queue"] == [(3, 2)]
    assert reput("verify", roots) == 0
    out = capsys.readouterr().out
    assert "dropped 3 messages of " in out
    assert "misplaced 2 messages of " in out


def test_what_the_dispatch_skipped_is_skipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    roots = write_store(tmp_path, messages(60)), tmp_path / "output"
    flip(roots[0] / "commitlog" / f"{4096:020}", 100)
    dispatch_all(*roots, CONFIG, fail_on_data_loss=False)
    before = tree(roots[1] / "consumequeue")
    remove_queue(roots[1] / "consumequeue/TopicTest/0")
    assert rebuild(roots, capsys, "--topic", "TopicTest")[0] == 0
    assert tree(roots[1] / "consumequeue") == before
    assert reput("verify", roots) == 0


def test_damage_in_the_log_leaves_the_queue_unchanged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    roots = write_store(tmp_path, messages(60)), tmp_path / "output"
    dispatch_all(*roots, CONFIG)
    flip(roots[0] / "commitlog" / f"{4096:020}", 100)
    before = tree(roots[1] / "consumequeue")
    code, queues, err = rebuild(roots, capsys, "--topic", "TopicTest")
    assert (code, queues) == (3, [])
    assert f"{4096:020}" in err
    assert tree(roots[1] / "consumequeue") == before
    assert not (roots[1] / "reput/rebuild").exists()
    assert not (roots[1] / "abort").exists()


# --- Where the log's beginning has expired -----------------------------------------------------


def test_an_aged_queue_begins_as_a_brokers_on_that_log(
    tmp_path: Path, made: tuple[Path, Path], config: StoreConfig,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    store, output = made
    for path in log_files(store)[:3]:
        path.unlink()
    dispatch_all(store, tmp_path / "fresh", config)  # a new root of the remaining log
    with MessageStore.open(store, output) as reads:
        ends = {q: reads.max_offset_in_queue(q, 0) for q in ("Old", "Rare", "T")}
        for topic in ("Rare", "T"):
            first = reads.min_offset_in_queue(topic, 0)
            flip_first(output / "consumequeue" / topic / "0")
            code, (queue,), _ = rebuild(made, capsys, "--topic", topic)
            assert (code, queue["first_offset"], queue["max_offset"]) == (0, first, ends[topic])
            for kind in ("consumequeue", "consumequeue_ext"):
                there, fresh = output / kind / topic, tmp_path / "fresh" / kind / topic
                assert tree(there) == tree(fresh)
            found = reads.get_message(topic, 0, first, tags="t0 || t1 || t2")
            assert [m.queue_offset for m in found.messages][:1] == [first]
        code, (queue,), _ = rebuild(made, capsys, "--topic", "Old")
        assert (code, queue["rebuilt"]) == (0, False)
        assert queue["reason"] == "the log holds no message of it"
        assert {q: reads.max_offset_in_queue(q, 0) for q in ends} == ends
    assert reput("verify", made) == 0
    dispatch_all(store, output, config)
    assert reput("verify", made) == 0


def test_roll_back_works_after_the_rebuild_of_an_aged_queue(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Some messages were dropped, so the queue alone does not show where it ended."""
    config = VARIANTS["ext"]
    repeated = [m for n in range(4, 60, 4) for m in (*messages(4, n), *messages(1, n))]
    roots = write_store(tmp_path, repeated), tmp_path / "output"
    dispatch_all(*roots, config, one_by_one=True)
    for path in log_files(roots[0])[:2]:
        path.unlink()
    assert rebuild(roots, capsys, "--topic", "TopicTest")[0] == 0
    assert reput("verify", roots) == 0
    last = log_files(roots[0])[-1]
    last.write_bytes(bytes(last.stat().st_size))
    dispatch_all(*roots, config)
    dispatch_all(roots[0], tmp_path / "fresh", config)
    for kind in ("consumequeue", "consumequeue_ext"):
        assert_same_content(tree(roots[1] / kind), tree(tmp_path / "fresh" / kind))
    assert reput("verify", roots) == 0


def test_expired_files_are_deleted(
    tmp_path: Path, made: tuple[Path, Path], config: StoreConfig,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    store, output = made
    for path in log_files(store)[:-2]:
        path.unlink()
    assert rebuild(made, capsys, "--topic", "T")[0] == 0
    least = int(log_files(store)[0].name)
    kept = expected_root(tmp_path, config, least) / "consumequeue/T/0"
    names = [p.name for p in (output / "consumequeue/T/0").iterdir()]
    assert sorted(names) == sorted(p.name for p in kept.iterdir())


# --- Refused ------------------------------------------------------------------------------------


def test_a_root_in_use_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, output = write_store(tmp_path, messages(12)), tmp_path / "output"
    root = DispatchRoot.open(output, store, CONFIG, disk=HastyDisk())
    try:
        code, _, err = rebuild((store, output), capsys, "--topic", "TopicTest")
        assert code == 4
        assert "is locked" in err
    finally:
        root.close(clean=True)


def test_queues_that_cannot_be_rebuilt_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    roots = write_store(tmp_path, messages(12)), tmp_path / "output"
    dispatch_all(*roots, CONFIG)
    code, queues, err = rebuild(roots, capsys, "--topic", "NoSuch", "--queue", "7")
    assert (code, queues) == (1, [])
    assert "NoSuch/7" in err
    forget_progress(roots[1])
    before = tree(roots[1])
    code, _, err = rebuild(roots, capsys, "--topic", "TopicTest")
    assert code == 2
    assert "run reput dispatch" in err
    assert tree(roots[1]) == before
    code, _, err = rebuild((roots[0], tmp_path / "nowhere"), capsys, "--topic", "TopicTest")
    assert code == 2
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("order", [1, -1])
def test_topics_whose_paths_collide_exit_with_6_and_stay_searchable(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], order: int
) -> None:
    root, output = tmp_path / "store", tmp_path / "out"
    config = make_store(root, 0)
    topics = ["a", "a/0/00000000000000000000"][::order]
    with CommitLogWriter(root, config) as writer:
        for topic in topics:
            writer.append_many([NewMessage(topic, 0, b"x", make_properties(keys="k"))], 1)
    for _ in range(2):
        assert run(["rebuild", str(root), "--output", str(output)]) == 6
        assert "consumequeue/a/0/00000000000000000000" in capfd.readouterr().err
        assert not (output / "consumequeue").exists()
    for topic in topics:
        assert run(["search", str(root), "--topic", topic, "--json"]) == 0
        assert json.loads(capfd.readouterr().out)["topic"] == topic
