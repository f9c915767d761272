"""A root proved equal part by part: what the comparison in log order finds equal, and no other."""

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from checkpoints.bulk.prove import Proof, can_prove, prove
from checkpoints.bulk.tasks import RunHere
from checkpoints.progress import read_progress
from store.commit_log import CommitLog
from store.config import StoreConfig
from store.errors import StoreError
from store.log_plan import LogPlanner
from streaming.verification import verify
from tests.checkpoints.test_retention import sent
from tests.conftest import Golden
from tests.dispatching import dispatch_all
from tests.verify_stores import CONFIG, VARIANTS, flip, messages, write_store

CONFIGS = {
    "plain": CONFIG,
    "tiny": VARIANTS["tiny"],
    "off": replace(CONFIG, message_index_enable=False),
}


def proof_of(store_root: Path, output: Path, config: StoreConfig) -> Proof | None:
    """Prove with parts of a few records; None too where it cannot be done so."""
    progress = read_progress(output)
    log = CommitLog(config.commit_log_paths(store_root), config)
    assert progress is not None
    if not can_prove(output, progress, log):
        return None
    planner = LogPlanner(log, lambda: True)
    return prove(output, progress, log, planner, RunHere(), part_bytes=400)


@pytest.fixture(params=list(CONFIGS))
def config(request: pytest.FixtureRequest) -> StoreConfig:
    return CONFIGS[str(request.param)]


@pytest.fixture
def roots(tmp_path: Path, config: StoreConfig) -> tuple[Path, Path]:
    store_root, output = write_store(tmp_path, sent(60)), tmp_path / "output"
    dispatch_all(store_root, output, config, max_bytes=3000)
    return store_root, output


def test_real_stores_are_proved_as_far_as_their_queues_are_continuous(
    golden: Golden, tmp_path: Path
) -> None:
    config = golden.config
    try:
        dispatch_all(golden.store_root, tmp_path, config)
    except StoreError:  # a store whose log ends in what its broker does not know
        return
    found = verify(golden.store_root, tmp_path, config)
    proof = proof_of(golden.store_root, tmp_path, config)
    if proof is not None:
        assert found.is_equal
        assert (proof.messages, proof.units, proof.entries) == (
            found.messages, found.counts.units, found.counts.entries,
        )  # fmt: skip
    elif golden.name in {"g1", "g2", "g3", "g5"}:
        pytest.fail("this one has continuous queues alone")


def test_counts_are_those_of_the_comparison_in_log_order(
    roots: tuple[Path, Path], config: StoreConfig
) -> None:
    found = verify(*roots, config)
    assert proof_of(*roots, config) == Proof(
        found.messages, found.counts.units, found.counts.entries
    )
    assert verify(*roots, config, None, RunHere()) == found


def test_no_flipped_byte_is_proved_equal(roots: tuple[Path, Path], config: StoreConfig) -> None:
    random = Random(7)
    kinds = [roots[1] / kind for kind in ("consumequeue", "index")]
    files = [path for kind in kinds for path in sorted(kind.rglob("*")) if path.is_file()]
    for path in random.sample(files, min(len(files), 12)):
        size = path.stat().st_size
        for at in {*range(0, min(size, 60), 17), *(random.randrange(size) for _ in range(8))}:
            mask = 1 << random.randrange(8)
            flip(path, at, mask)
            assert proof_of(*roots, config) is None, (path, at)
            flip(path, at, mask)
    assert proof_of(*roots, config) is not None


@pytest.mark.parametrize("config", ["plain"], indirect=True)
def test_nothing_too_many_or_too_few_is_proved_equal(
    roots: tuple[Path, Path], config: StoreConfig
) -> None:
    output = roots[1]
    queue = output / "consumequeue/T/0"
    last = max(queue.iterdir())
    for extra in (
        queue / f"{int(last.name) + 100:020}",
        queue / "note",
        output / "consumequeue/T/7",
        output / "consumequeue/note",
        output / "index/note",
    ):
        extra.write_bytes(last.read_bytes())
        assert proof_of(*roots, config) is None, extra
        extra.unlink()
    for path in (min(queue.iterdir()), last, min((output / "index").iterdir())):
        gone = path.rename(output / "gone")
        assert proof_of(*roots, config) is None, path
        gone.rename(path)
    assert proof_of(*roots, config) is not None
    (output / "abort").touch()
    assert proof_of(*roots, config) is None


def test_a_queue_that_is_not_continuous_is_left_to_the_comparison_in_log_order(
    tmp_path: Path,
) -> None:
    sent = [*messages(5), *messages(5, 9)]
    roots = write_store(tmp_path, sent), tmp_path / "output"
    dispatch_all(*roots, CONFIG)
    assert proof_of(*roots, CONFIG) is None
    assert verify(*roots, CONFIG, None, RunHere()).is_equal
