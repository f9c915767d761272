"""The progress record survives a round trip, and any other content is refused."""

import json
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.config import StoreConfig
from store.consumequeue.names import can_name_directory
from store.consumequeue.queue_ends import QueueEnd
from store.errors import DamageError, StoreError, StoreIOError, UnsupportedFormatError
from store.io.checked_json import can_be_path, decode_record, encode_record
from store.io.disk import Disk
from store.output.progress import (
    Fingerprint,
    LostRange,
    OwnershipStamp,
    Progress,
    RollbackPoint,
    read_progress,
    write_progress,
)

PATH = Path("root/reput/progress")
SMALL = StoreConfig(max_hash_slot_num=7, max_index_num=10, enable_lmq=True)
LONGS = st.integers(-(2**63), 2**63 - 1)
COUNTS = st.integers(0, 2**62)
PROGRESS = Progress(
    reput_from_offset=1234,
    begin_offset=1024,
    store="store",
    commit_log="",
    shape=StoreConfig().shape(),
    last_record=Fingerprint(1100, 134, 1_700_000_000_000, body_crc=7, record_crc=9),
    index_file="20260101000000000",
    index_count=3,
    index_msg_timestamp=5,
    batch=3,
    messages=2,
    index_first="20260101000000000",
    index_files=1,
    log_was_clean=True,
    lost=(LostRange(1024, 1100, "store/commitlog/0", "the body does not match its CRC"),),
    drops={"主题/0": {"repeated": 1, "gaps": 2}},
    rollback_points=(
        RollbackPoint(
            number=2,
            reput_from_offset=1100,
            last_record=Fingerprint(1024, 76, 1_600_000_000_000, 8, 9),
            messages=1,
            drops={"主题/0": {"repeated": 1, "gaps": 0}},
            queue_ends=(QueueEnd("主题", 0, 20, 100, 1),),
            index_msg_timestamp=5,
        ),
    ),
    stamp=OwnershipStamp("0000abcd", "", 5, 6),
)

OFFSETS = st.integers(0, 2**63 - 2**31)
TOPICS = st.text(min_size=1, max_size=60).filter(can_name_directory)
QUEUE_IDS = st.integers(-(2**31), 2**31 - 1)
PATHS = st.text().filter(can_be_path)
INDEX_NAMES = st.one_of(st.just(""), st.text("0123456789", min_size=17, max_size=17))
UNIT_ENDS = st.one_of(st.just(-1), st.integers(0, 2**58).map(lambda n: 20 * n))
CHECKSUMS = st.one_of(st.just(""), st.text("0123456789abcdef", min_size=8, max_size=8))
DROPS = st.dictionaries(
    st.builds("{}/{}".format, TOPICS, QUEUE_IDS),
    st.fixed_dictionaries({"repeated": COUNTS, "gaps": COUNTS}),
    max_size=3,
)
FINGERPRINTS = st.builds(
    Fingerprint, OFFSETS, st.integers(1, 2**31 - 1), LONGS, QUEUE_IDS, st.integers(0, 2**32 - 1)
)
ENDS = st.lists(st.builds(QueueEnd, TOPICS, QUEUE_IDS, UNIT_ENDS, UNIT_ENDS, COUNTS), max_size=3)
NANOSECONDS = st.integers(-1, 2**63 - 1)


class AnyProgress(Progress):
    """Progress whose fields may contradict one another."""

    def check_fields(self) -> None:
        pass


progresses = st.builds(
    AnyProgress,
    reput_from_offset=OFFSETS,
    begin_offset=OFFSETS,
    store=PATHS,
    commit_log=PATHS,
    shape=st.sampled_from([SMALL.shape(), StoreConfig().shape()]),
    last_record=st.one_of(st.none(), FINGERPRINTS),
    index_file=INDEX_NAMES,
    index_count=COUNTS,
    index_msg_timestamp=LONGS,
    batch=COUNTS,
    generation=COUNTS,
    messages=COUNTS,
    index_first=INDEX_NAMES,
    index_files=COUNTS,
    log_was_clean=st.one_of(st.none(), st.booleans()),
    lost=st.lists(st.builds(LostRange, OFFSETS, OFFSETS, PATHS, st.text())).map(tuple),
    drops=DROPS,
    rollback_points=st.lists(
        st.builds(
            RollbackPoint, COUNTS, OFFSETS, FINGERPRINTS, COUNTS, DROPS, ENDS.map(tuple), LONGS
        ),
        max_size=3,
    ).map(tuple),
    stamp=st.builds(OwnershipStamp, CHECKSUMS, CHECKSUMS, NANOSECONDS, NANOSECONDS),
)


def with_checksum(line: bytes) -> bytes:
    """Return a progress file: a line with a valid checksum."""
    return line + b"\n%08x\n" % zlib.crc32(line)


@settings(max_examples=100, deadline=None)
@given(progresses)
def test_progress_is_read_back(progress: Progress) -> None:
    assert progress == decode_record(encode_record(progress), PATH, AnyProgress)


def test_progress_is_two_lines_of_ascii() -> None:
    line, checksum, rest = encode_record(PROGRESS).split(b"\n")
    assert line.isascii()
    assert (b"%08x" % zlib.crc32(line), b"") == (checksum, rest)
    assert {"format": 1, "reput_from_offset": 1234}.items() <= json.loads(line).items()


def test_every_changed_byte_is_found() -> None:
    data = encode_record(PROGRESS)
    for at in range(len(data) - 1):
        for mask in (0x01, 0x20, 0x80):
            changed = bytearray(data)
            changed[at] ^= mask
            with pytest.raises(DamageError) as caught:
                decode_record(bytes(changed), PATH, Progress)
            assert caught.value.path == PATH


def test_every_cut_is_found() -> None:
    data = encode_record(PROGRESS)
    for size in range(len(data) - 1):
        with pytest.raises(DamageError):
            decode_record(data[:size], PATH, Progress)
    assert decode_record(data[:-1], PATH, Progress) == PROGRESS


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text()),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner)),
    max_leaves=5,
)


@settings(max_examples=150, deadline=None)
@given(st.one_of(st.binary(), st.binary().map(with_checksum), JSON.map(
    lambda value: with_checksum(json.dumps(value).encode())
)))  # fmt: skip
def test_any_bytes_raise_only_store_errors(data: bytes) -> None:
    with pytest.raises(StoreError):
        decode_record(data, PATH, Progress)


@pytest.mark.parametrize("name", ["reput_from_offset", "shape", "last_record", "lost", "format"])
def test_a_field_left_out_or_of_another_kind_is_damage(name: str) -> None:
    values = json.loads(encode_record(PROGRESS).split(b"\n")[0])
    unknown = with_checksum(json.dumps({**values, "other": 1}).encode())
    del values[name]
    missing = with_checksum(json.dumps(values).encode())
    for data in (unknown, missing):
        with pytest.raises(DamageError, match="cannot be read"):
            decode_record(data, PATH, Progress)


@pytest.mark.parametrize("version", [0, 2])
def test_another_format_is_refused_by_its_number(version: int) -> None:
    values = json.loads(encode_record(PROGRESS).split(b"\n")[0])
    data = with_checksum(json.dumps({**values, "format": version}).encode())
    reason = f"^{PATH} has format {version}; this release reads format 1: rebuild into a new OUTPUT"
    with pytest.raises(UnsupportedFormatError, match=reason):
        decode_record(data, PATH, Progress)


def test_progress_is_replaced_atomically(tmp_path: Path) -> None:
    assert read_progress(tmp_path) is None
    disk = Disk()
    write_progress(tmp_path, PROGRESS, disk)
    write_progress(tmp_path, PROGRESS, disk)
    assert read_progress(tmp_path) == PROGRESS
    assert [path.name for path in (tmp_path / "reput").iterdir()] == ["progress"]


def test_progress_that_is_not_a_file_is_an_io_error(tmp_path: Path) -> None:
    (tmp_path / "reput" / "progress").mkdir(parents=True)
    with pytest.raises(StoreIOError, match="cannot read"):
        read_progress(tmp_path)
