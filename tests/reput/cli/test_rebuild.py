"""``reput rebuild``: a damaged queue is found, rebuilt from the log, and then equal."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reput.cli import run
from store.commitlog.record import NewMessage, make_properties
from store.config import StoreConfig
from tests.support.bulk_writer import BulkWriter
from tests.support.dispatching import (
    assert_same_content,
    assert_same_store,
    built_tree,
    dispatch_all,
    tree,
)
from tests.support.rebuilding import fail_after, rebuild_all
from tests.support.stores.aged import log_files, sent
from tests.support.stores.written import make_store
from tests.support.verify_stores import (
    CONFIG,
    VARIANTS,
    flip,
    messages,
    write_store,
)


@pytest.fixture(params=VARIANTS)
def config(request: pytest.FixtureRequest) -> StoreConfig:
    return VARIANTS[str(request.param)]


@pytest.fixture
def made(tmp_path: Path, config: StoreConfig) -> tuple[Path, Path]:
    """Return a store and an OUTPUT dispatched from it."""
    store, output = write_store(tmp_path, sent()), tmp_path / "output"
    dispatch_all(store, output, config, one_by_one=True)
    return store, output


def reput(command: str, directories: tuple[Path, Path], *options: str) -> int:
    store, output = directories
    return run([command, str(store), "--output", str(output), *options])


def rebuild(
    directories: tuple[Path, Path], capture: pytest.CaptureFixture[str]
) -> tuple[int, dict[str, Any], str]:
    capture.readouterr()
    code = reput("rebuild", directories, "--json")
    out, err = capture.readouterr()
    return code, json.loads(out) if out else {}, err


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
    before = built_tree(made[1])
    damage(made[1] / "consumequeue" / topic / "0")
    assert reput("verify", made) == 1
    code, rebuilt, _ = rebuild(made, capsys)
    assert (code, rebuilt["messages"], rebuilt["drops"]) == (0, len(sent()), [])
    assert_same_content(built_tree(made[1]), before)
    assert reput("verify", made) == 0


def test_what_a_broker_drops_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = [*messages(8), *messages(3, first=4), *messages(2, first=20)]
    directories = write_store(tmp_path, odd), tmp_path / "output"
    dispatch_all(*directories, CONFIG)
    flip_first(directories[1] / "consumequeue/TopicTest/0")
    code, rebuilt, _ = rebuild(directories, capsys)
    drops = {"topic": "TopicTest", "queue_id": 0, "repeated": 3, "gaps": 2}
    assert (code, rebuilt["drops"]) == (0, [drops])
    summary = "dropped 3 messages (queue offset repeated) and placed 2 lower"
    assert reput("rebuild", directories) == 0
    assert summary in capsys.readouterr().out
    assert reput("topics", directories) == 0
    assert summary in capsys.readouterr().out
    assert reput("topics", directories, "--json") == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(r["repeated"], r["gaps"]) for r in rows if r["row"] == "queue"] == [(3, 2)]
    assert reput("verify", directories) == 0
    out = capsys.readouterr().out
    assert "dropped 3 messages of " in out
    assert "misplaced 2 messages of " in out


def flip_in_file(store: Path, number: int) -> None:
    flip(store / "commitlog" / f"{4096 * number:020}", 100)


@pytest.fixture
def skipped(tmp_path: Path) -> tuple[Path, Path]:
    """Return a store with damage in its second file, and an OUTPUT whose dispatch skipped it."""
    directories = write_store(tmp_path, messages(60)), tmp_path / "output"
    flip_in_file(directories[0], 1)
    dispatch_all(*directories, CONFIG, fail_on_data_loss=False)
    remove_queue(directories[1] / "consumequeue/TopicTest/0")
    return directories


def test_what_the_dispatch_skipped_is_skipped(
    tmp_path: Path, skipped: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    code, rebuilt, _ = rebuild(skipped, capsys)
    assert (code, rebuilt["damage"], len(rebuilt["lost"])) == (0, None, 1)
    dispatch_all(skipped[0], tmp_path / "again", CONFIG, fail_on_data_loss=False)
    assert_same_store(skipped[1], tmp_path / "again")
    assert reput("verify", skipped) == 0
    assert reput("rebuild", skipped) == 0
    assert "skipped offsets 4,096 to 4,319, which are lost: the body" in capsys.readouterr().out


def test_a_skipped_range_that_can_be_read_again_is_built(
    tmp_path: Path, skipped: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    flip_in_file(skipped[0], 1)  # as it was
    code, rebuilt, _ = rebuild(skipped, capsys)
    assert (code, rebuilt["messages"], rebuilt["lost"]) == (0, 60, [])
    dispatch_all(skipped[0], tmp_path / "again", CONFIG)
    assert_same_store(skipped[1], tmp_path / "again")


def test_an_interrupted_rebuild_builds_a_skipped_range_that_can_be_read_again(
    tmp_path: Path, skipped: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(KeyboardInterrupt):
        rebuild_all(*skipped, CONFIG, before=fail_after(6, KeyboardInterrupt()))
    flip_in_file(skipped[0], 1)  # as it was
    code, rebuilt, _ = rebuild(skipped, capsys)
    assert (code, rebuilt["messages"], rebuilt["lost"]) == (0, 60, [])
    dispatch_all(skipped[0], tmp_path / "again", CONFIG)
    assert_same_store(skipped[1], tmp_path / "again")


@pytest.mark.parametrize("number", [0, 2])
def test_other_damage_than_what_was_skipped_changes_nothing(
    skipped: tuple[Path, Path], number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    flip_in_file(skipped[0], number)
    before = built_tree(skipped[1])
    capsys.readouterr()
    assert reput("rebuild", skipped) == 3
    assert f"{4096 * number:020}" in capsys.readouterr().err
    assert built_tree(skipped[1]) == before
    flip_in_file(skipped[0], number)
    assert rebuild(skipped, capsys)[0] == 0


def test_of_a_skipped_range_the_rest_is_skipped_after_its_begin_has_expired(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directories = write_store(tmp_path, messages(60)), tmp_path / "output"
    log_files(directories[0])[1].unlink()
    flip_in_file(directories[0], 2)
    dispatch_all(*directories, CONFIG, fail_on_data_loss=False)
    log_files(directories[0])[0].unlink()
    assert rebuild(directories, capsys)[0] == 0
    assert reput("verify", directories) == 0


# --- Refused ------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [["--topic", "T"], ["--queue", "0"]])
def test_a_part_of_the_queues_cannot_be_named(
    made: tuple[Path, Path], options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    before = tree(made[1])
    assert reput("rebuild", made, *options) == 2
    assert options[0] in capsys.readouterr().err
    assert tree(made[1]) == before


@pytest.mark.parametrize("order", [1, -1])
def test_topics_whose_paths_collide_exit_with_6_and_stay_searchable(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], order: int
) -> None:
    store_root, output = tmp_path / "store", tmp_path / "out"
    config = make_store(store_root, 0)
    topics = ["a", "a/0/00000000000000000000"][::order]
    with BulkWriter(store_root, config) as writer:
        for topic in topics:
            writer.append_many([NewMessage(topic, 0, b"x", make_properties(keys="k"))], 1)
    for _ in range(2):
        assert run(["rebuild", str(store_root), "--output", str(output)]) == 6
        assert "consumequeue/a/0/00000000000000000000" in capfd.readouterr().err
        assert not (output / "consumequeue").exists()
    for topic in topics:
        assert run(["search", str(store_root), "--topic", topic, "--json"]) == 0
        assert json.loads(capfd.readouterr().out)["topic"] == topic
