"""Unsupported kinds of store are refused when they are opened, without loading a kernel."""

import subprocess
import sys
from pathlib import Path

import pytest

from store import MessageStore
from store.errors import UnsupportedFormatError
from tests.conftest import ARCHIVES, Golden, archive_name
from tests.logs.build import Message, build_log, write_log

FILE_SIZE = 4096
ENTRY_HEADER = b"\0\0\0\1" + bytes(44)  # a DLedger entry's header; its magic is 1


def refused(store_root: Path) -> str:
    with pytest.raises(UnsupportedFormatError) as caught:
        MessageStore.open(store_root)
    return str(caught.value)


def test_a_dledger_log_is_detected_by_its_entries_and_by_its_directory(tmp_path: Path) -> None:
    data = build_log([Message()] * 3, FILE_SIZE)[0]
    write_log({0: (ENTRY_HEADER + data)[:FILE_SIZE]}, tmp_path / "commitlog")
    (tmp_path / "broker.conf").write_text(f"mappedFileSizeCommitLog={FILE_SIZE}\n")
    assert "its records are inside DLedger entries" in refused(tmp_path)
    (tmp_path / "commitlog").rename(tmp_path / "dledger-n0")
    assert "dledger-n0 is a DLedger log" in refused(tmp_path)


@pytest.mark.parametrize("size", [0, 1, 50, FILE_SIZE])
def test_a_short_or_blank_first_file_is_not_a_dledger_log(tmp_path: Path, size: int) -> None:
    write_log({0: bytes(size)}, tmp_path / "commitlog")
    (tmp_path / "broker.conf").write_text(f"mappedFileSizeCommitLog={FILE_SIZE}\n")
    with MessageStore.open(tmp_path) as store:
        assert (store.topics(), store.max_phy_offset()) == ([], 0)


@pytest.mark.parametrize("golden", ARCHIVES[:1], ids=archive_name, indirect=True)
def test_opening_a_brokers_files_loads_no_kernel(golden: Golden) -> None:
    directories = str(golden.store_root), str(golden.directory / "expected")
    code = f"""
import sys
from store import MessageStore
with MessageStore.open(*{directories!r}, broker_version={golden.version!r}) as s:
    assert all(s.queue_ids(topic) for topic in s.topics())
    assert s.topics()
    assert s.look_message_by_offset(s.min_phy_offset()) is not None
print("loaded:", [m for m in sys.modules if m == "numba" or m.startswith("store.kernels")])
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (ran.stdout, ran.stderr) == ("loaded: []\n", "")
