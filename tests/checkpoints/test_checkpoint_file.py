"""The broker's checkpoint file, byte for byte."""

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoints.checkpoint_file import (
    StoreCheckpoint,
    decode_checkpoint,
    encode_checkpoint,
    read_checkpoint,
    write_checkpoint,
)
from store.errors import DamageError, StoreIOError
from store.io.disk import Disk
from tests.conftest import Golden

LONGS = st.integers(-(2**63), 2**63 - 1)


@given(st.builds(StoreCheckpoint, *[LONGS] * 6))
def test_a_checkpoint_is_read_back(checkpoint: StoreCheckpoint) -> None:
    data = encode_checkpoint(checkpoint)
    assert len(data) == 4096
    assert checkpoint == decode_checkpoint(data)


def test_fields_are_where_a_broker_has_them(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, StoreCheckpoint(1, 2, 3, 4, -5, 6), Disk())
    fields = [1, 2, 3, 4, -5, 6]
    assert struct.pack(">6q", *fields).ljust(4096, b"\0") == (tmp_path / "checkpoint").read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


def test_a_brokers_checkpoint_is_read_and_written_alike(golden: Golden) -> None:
    output = golden.directory / "expected"
    checkpoint = read_checkpoint(output)
    assert checkpoint is not None
    assert (output / "checkpoint").read_bytes() == encode_checkpoint(checkpoint)
    assert checkpoint.logics_msg_timestamp > 0


def test_an_output_without_a_checkpoint_has_none(tmp_path: Path) -> None:
    assert read_checkpoint(tmp_path) is None


@pytest.mark.parametrize("size", [0, 47])
def test_a_short_checkpoint_is_damage(tmp_path: Path, size: int) -> None:
    (tmp_path / "checkpoint").write_bytes(bytes(size))
    with pytest.raises(DamageError, match=f"this {size}") as caught:
        read_checkpoint(tmp_path)
    assert tmp_path / "checkpoint" == caught.value.path


def test_a_checkpoint_that_is_not_a_file_is_an_io_error(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    with pytest.raises(StoreIOError, match="cannot read"):
        read_checkpoint(tmp_path)
