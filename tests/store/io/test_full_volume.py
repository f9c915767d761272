"""An OUTPUT on a full file system in memory (tmpfs).

No page can be allocated for a hole there: reading one through a map raises SIGBUS, so OUTPUT is
read in a separate process.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from store.config import config_from, load_config
from tests.support.dispatching import dispatch_all
from tests.support.stores.numbered import START, make_store, numbered
from tests.support.volume import mount_tmpfs

VOLUME = 24 << 20
# Sparse like a broker's: a queue file is longer than its content, a slot table is almost unused.
CONF = {
    "mappedFileSizeCommitLog": "4096",
    "maxHashSlotNum": "1000000",
    "maxIndexNum": "100000",
}
CONFIG = config_from(CONF, version=load_config(Path("none")).version, origin="test")
READER = """
import sys
from pathlib import Path
from checkpoints.output import DispatchOutput
from store import MessageStore
from store.config import load_config
from store.consumequeue.files import queue_tail
from store.errors import StoreIOError
from reput.cli import main

store_root, output = Path(sys.argv[1]), Path(sys.argv[2])
config = load_config(store_root)
with MessageStore.open(store_root, output) as s:
    assert s.max_offset_in_queue("T", 0) == 200
    assert [m.queue_offset for m in s.get_message("T", 0, 199).messages] == [199]
    assert s.get_message("T", 0, 200).status == "OFFSET_OVERFLOW_ONE"
    assert s.offset_in_queue_by_time("T", 0, int(sys.argv[3])) == 199
    for n in range(300):
        assert len(s.query_message("T", f"k{n}").messages) == (n < 200)
assert queue_tail(output / "consumequeue/T/0", config.mapped_file_size_consume_queue).end == 4000
try:
    DispatchOutput.open(output, store_root, config)
except StoreIOError as e:
    print(e)
sys.argv = ["reput", "verify", str(store_root), "--output", str(output)]
main()
"""


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Path]:
    """Mount a small tmpfs."""
    path = tmp_path / "volume"
    mount_tmpfs(path, VOLUME)
    yield path
    subprocess.run(["umount", str(path)], check=True)


def fill(path: Path) -> None:
    """Write until the volume is full."""
    with path.open("wb", buffering=0) as f, contextlib.suppress(OSError):
        while True:
            f.write(bytes(4096))
    assert os.statvfs(path).f_bavail == 0


def test_reads_need_no_space(tmp_path: Path, volume: Path) -> None:
    store_root, output = make_store(tmp_path / "store", numbered(200), CONFIG), volume / "out"
    (store_root / "broker.conf").write_text("".join(f"{k}={v}\n" for k, v in CONF.items()))
    dispatch_all(store_root, output, CONFIG)
    fill(volume / "ballast")
    arguments = [sys.executable, "-c", READER, str(store_root), str(output), str(START + 199_000)]
    read = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert read.returncode == 0, (read.returncode, read.stdout, read.stderr)
    assert "No space left on device" in read.stdout
    assert "equal" in read.stdout


@pytest.mark.parametrize("command", ["verify", "dump"])
def test_a_hole_in_place_of_units_is_an_error(tmp_path: Path, volume: Path, command: str) -> None:
    store_root, output = make_store(tmp_path / "store", numbered(200), CONFIG), volume / "out"
    (store_root / "broker.conf").write_text("".join(f"{k}={v}\n" for k, v in CONF.items()))
    dispatch_all(store_root, output, CONFIG)
    queue = output / "consumequeue/T/0/00000000000000000000"
    size = queue.stat().st_size
    queue.unlink()
    queue.touch()
    os.truncate(queue, size)
    fill(volume / "ballast")
    of = {"verify": [str(store_root), "--output", str(output)], "dump": [str(queue)]}
    run = "import sys; from reput.cli import main; main()"
    arguments = [sys.executable, "-c", run, command, *of[command]]
    read = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert read.returncode == 3, (read.returncode, read.stdout, read.stderr)
    assert f"damaged: {queue} at offset 0: the bytes vanished" in read.stderr
