"""Which directories may be OUTPUT; the others are refused before anything is written."""

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from checkpoints.output import DispatchOutput
from store.config import StoreConfig
from store.errors import ConfigError, DamageError
from tests.checkpoints.conftest import CONFIG, MESSAGES
from tests.support.dispatching import HastyDisk, dispatch_all
from tests.support.rebuilding import rebuild_all

Take = Callable[[Path, Path, StoreConfig], object]


def take_to_dispatch(output: Path, store: Path, config: StoreConfig = CONFIG) -> None:
    DispatchOutput.open(output, store, config, disk=HastyDisk()).close(clean=True)


def take_to_rebuild(output: Path, store: Path, config: StoreConfig = CONFIG) -> None:
    DispatchOutput.replacing(output, store, config, disk=HastyDisk()).close(clean=True)


def take_to_recover(output: Path, store: Path, config: StoreConfig = CONFIG) -> None:
    DispatchOutput.open(output, store, config, adopts=True, disk=HastyDisk()).close(clean=True)


TAKES = {"dispatch": take_to_dispatch, "rebuild": take_to_rebuild, "recover": take_to_recover}


@pytest.fixture(params=TAKES.values(), ids=TAKES)
def take(request: pytest.FixtureRequest) -> Take:
    chosen: Take = request.param
    return chosen


def snapshot(directory: Path) -> dict[str, object]:
    """Return all entries below a directory, with content and times."""
    return {
        str(path): (path.lstat().st_mtime_ns, path.read_bytes() if path.is_file() else None)
        for path in [directory, *sorted(directory.rglob("*"))]
    }


def fill(output: Path, names: list[str], data: bytes = b"precious") -> None:
    """Create files, and directories where a name ends with a slash."""
    for name in names:
        path = output / name
        (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
        if not name.endswith("/"):
            path.write_bytes(data)


def assert_refused(take: Take, output: Path, store: Path, config: StoreConfig = CONFIG) -> str:
    before = snapshot(store.parent)
    with pytest.raises(ConfigError) as caught:
        take(output, store, config)
    assert snapshot(store.parent) == before
    assert "\n" not in str(caught.value)
    return str(caught.value)


def assert_accepted(take: Take, output: Path, store: Path) -> None:
    """Assert that OUTPUT opens, and that a dispatch into it is complete."""
    take(output, store, CONFIG)
    assert len(MESSAGES) == dispatch_all(store, output, CONFIG).messages


@pytest.mark.parametrize(
    ("files", "found"),
    [
        (["index/index.html", "consumequeue/"], "consumequeue"),
        (["consumequeue/T/page.html", "index/"], "consumequeue"),
        (["consumequeue/", "index/", "checkpoint", "abort"], "abort"),
        (["consumequeue/T/0/", "notes.txt"], "consumequeue"),
        (["reput/notes.txt"], "reput/notes.txt"),
        (["lost+found/", "photos/a.jpg"], "photos"),
        (["index/20260101000000000/"], "index"),
        ([".git/HEAD", "index/", "config/"], ".git"),
        (["reput/bulk/", "src/main.py"], "src"),
        (["reput/bulk/", "index/index.html"], "index"),
        (["reput/spark/mine/job.py"], "reput/spark"),
        (["reput/spark/job.py"], "reput/spark"),
        (["reput/spark/epoch-1/job.py"], "reput/spark"),
        (["reput/progress.tmp"], "reput/progress.tmp"),
        (["reput/progress/x"], "reput/progress"),
    ],
)
def test_a_foreign_directory_is_refused_with_the_file_found(
    take: Take, output: Path, store: Path, files: list[str], found: str
) -> None:
    fill(output, files)
    reason = assert_refused(take, output, store)
    assert take is take_to_recover or f"it holds {found}; give a new OUTPUT, or" in reason


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("reput/bulk/src/main.py", "reput/bulk/src"),
        ("reput/bulk/new/consumequeue/T/page.html", "reput/bulk/new/consumequeue/T/page.html"),
        ("reput/bulk/notes.txt", "reput/bulk/notes.txt"),
        ("reput/bulk/plan", "reput/bulk/plan"),
        ("reput/bulk/old/x/", "reput/bulk/old/x"),
    ],
)
def test_known_names_do_not_make_a_foreign_directory_an_output(
    take: Take, output: Path, store: Path, name: str, found: str
) -> None:
    fill(output, [name])
    assert f"{output / found} is not a file of a rebuild" in assert_refused(take, output, store)


@pytest.mark.parametrize("name", ["progress", "batch", "swap"])
@pytest.mark.parametrize("data", [b"precious", b"", bytes(100), b'{"batch": 1'])
def test_a_state_file_without_a_valid_checksum_is_damage(
    take: Take, output: Path, store: Path, name: str, data: bytes
) -> None:
    fill(output, [f"reput/{name}"], data)
    before = snapshot(store.parent)
    with pytest.raises(DamageError, match=f"the {name} record does not match its checksum"):
        take(output, store, CONFIG)
    assert snapshot(store.parent) == before


@pytest.mark.parametrize(
    "name",
    ["reput/bulk/src/main.py", "reput/bulk/new/index/notes.txt", "reput/bulk/notes.txt"],
)
@pytest.mark.parametrize("is_ours", [True, False])
def test_an_output_is_refused_where_foreign_files_would_be_deleted(
    take: Take, output: Path, store: Path, name: str, is_ours: bool
) -> None:
    dispatch_all(store, output, CONFIG)
    if not is_ours:
        shutil.rmtree(output / "reput")
    fill(output, [name])
    reason = assert_refused(take, output, store)
    assert not is_ours or "is not a file of a rebuild" in reason


def test_a_spark_directory_with_foreign_files_is_kept(output: Path, store: Path) -> None:
    dispatch_all(store, output, CONFIG)
    fill(output, ["reput/spark/epoch-000003/job.py", "reput/spark/epoch-000002/offsets/"])
    owned = DispatchOutput.open(output, store, CONFIG, disk=HastyDisk())
    assert owned.new_epoch().name == "epoch-000004"
    owned.close(clean=True)
    assert (output / "reput/spark/epoch-000003/job.py").read_bytes() == b"precious"
    assert not (output / "reput" / "spark" / "epoch-000002").exists()


@pytest.mark.parametrize(
    "names",
    [
        ["reput/"],
        ["reput/progress.tmp"],
        ["reput/bulk/", "reput/swap.tmp"],
        ["reput/bulk/new/consumequeue/T/0/00000000000000000000", "reput/bulk/boot.123.tmp"],
        ["reput/bulk/new/reput/progress", "reput/bulk/boot"],
    ],
)
def test_the_files_of_a_start_killed_before_its_first_state_are_accepted(
    take: Take, output: Path, store: Path, names: list[str]
) -> None:
    fill(output, ["lock", *names], bytes(10))
    assert_accepted(take, output, store)


@pytest.mark.parametrize("data", [b"", bytes(100), b'{"batch": 1', b"\x7fgarbage"])
def test_damaged_progress_makes_a_dispatched_output_damaged(
    take: Take, output: Path, store: Path, data: bytes
) -> None:
    dispatch_all(store, output, CONFIG)
    for path in (output / "reput").iterdir():
        if path.name != "progress":
            path.unlink()
    (output / "reput" / "progress").write_bytes(data)
    with pytest.raises(DamageError, match="does not match its checksum"):
        take(output, store, CONFIG)


def test_a_file_is_no_output(take: Take, output: Path, store: Path) -> None:
    output.write_bytes(b"precious")
    assert "is not a directory" in assert_refused(take, output, store)


@pytest.mark.parametrize("where", ["", "sub", "sub/sub", "../commitlog", "../commitlog/sub/.."])
def test_a_commit_log_and_its_content_are_refused(take: Take, store: Path, where: str) -> None:
    assert "is in the commit log" in assert_refused(take, store / "commitlog" / where, store)


@pytest.mark.parametrize("where", [".", "sub"])
def test_a_link_to_a_commit_log_is_refused(
    take: Take, store: Path, tmp_path: Path, where: str
) -> None:
    (tmp_path / "link").symlink_to(store / "commitlog")
    assert "is in the commit log" in assert_refused(take, tmp_path / "link" / where, store)


def test_a_log_that_broker_conf_names_is_refused(take: Take, store: Path, tmp_path: Path) -> None:
    (store / "commitlog").rename(tmp_path / "elsewhere")
    (store / "link").symlink_to(tmp_path / "elsewhere")
    for path in (tmp_path / "elsewhere", store / "link"):
        config = replace(CONFIG, store_path_commit_log=str(path))
        for where in ("", "sub"):
            reason = assert_refused(take, tmp_path / "elsewhere" / where, store, config)
            assert "is in the commit log" in reason
        assert "contains the commit log" in assert_refused(take, tmp_path, store, config)


def test_a_directory_around_the_store_is_refused(take: Take, store: Path) -> None:
    assert "contains the commit log" in assert_refused(take, store.parent, store)


@pytest.mark.parametrize("where", ["", "commitlog", "commitlog/sub"])
def test_another_store_is_refused(take: Take, store: Path, where: str, tmp_path: Path) -> None:
    shutil.copytree(store, tmp_path / "other")
    assert_refused(take, tmp_path / "other" / where, store)


def test_the_directory_of_a_queue_is_refused(take: Take, output: Path, store: Path) -> None:
    dispatch_all(store, output, CONFIG)
    queue = next(path for path in output.glob("consumequeue/*/*"))
    for path in (queue, queue / "sub", queue.parent, output / "consumequeue", output / "index"):
        assert_refused(take, path, store)


@pytest.mark.parametrize("files", [[], ["lost+found/"], ["lock"], ["lost+found/", "lock"]])
def test_an_empty_directory_is_accepted(
    take: Take, output: Path, store: Path, files: list[str]
) -> None:
    output.mkdir()
    fill(output, files, b"")
    assert_accepted(take, output, store)
    assert all((output / name).exists() for name in files)


@pytest.mark.parametrize("way", [".", "../store"])
def test_the_store_itself_is_accepted(take: Take, store: Path, way: str) -> None:
    assert_accepted(take, store / way, store)


def test_an_output_with_its_operators_files_is_accepted(
    take: Take, output: Path, store: Path
) -> None:
    dispatch_all(store, output, CONFIG)
    fill(output, ["README", ".snapshot/"])
    take(output, store, CONFIG)
    assert (output / "README").read_bytes() == b"precious"


@pytest.mark.parametrize("more", [[], ["README", "reput/recovered", "reput/spark/"]])
def test_only_recover_adopts_the_files_of_a_broker(
    output: Path, store: Path, more: list[str]
) -> None:
    dispatch_all(store, output, CONFIG)
    shutil.rmtree(output / "reput")
    fill(output, more)
    for take in (take_to_dispatch, take_to_rebuild):
        reason = assert_refused(take, output, store)
        assert reason.endswith("or adopt a broker's files with reput recover")
    for take in (take_to_recover, take_to_dispatch, take_to_rebuild):
        take(output, store)
    assert all((output / name).exists() for name in ["reput/progress", *more])


@pytest.mark.parametrize(
    "name", ["index/notes.txt", "consumequeue/TopicTest/page.html", "consumequeue_ext/x", "reput/x"]
)
def test_a_tree_with_foreign_files_is_not_adopted(output: Path, store: Path, name: str) -> None:
    dispatch_all(store, output, CONFIG)
    shutil.rmtree(output / "reput")
    fill(output, [name])
    found = assert_refused(take_to_recover, output, store)
    assert f"{output / name} is neither a broker's nor reput's" in found


def test_a_rebuild_does_not_replace_foreign_files(output: Path, store: Path) -> None:
    dispatch_all(store, output, CONFIG)
    queue = next(path for path in output.glob("consumequeue/*/*"))
    for path in (output / "index" / "notes.txt", queue / "notes.txt", output / "consumequeue/x"):
        path.write_bytes(b"of the operator")
        with pytest.raises(ConfigError, match=f"{path} is not a file of RocketMQ's"):
            rebuild_all(store, output, CONFIG)
        dispatch_all(store, output, CONFIG)
        assert path.read_bytes() == b"of the operator"
        path.unlink()
    rebuild_all(store, output, CONFIG)


def test_a_loop_of_links_is_refused(take: Take, output: Path, store: Path) -> None:
    os.symlink(output, output)
    with pytest.raises(Exception, match=r"output"):
        take(output, store, CONFIG)
