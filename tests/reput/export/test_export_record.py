"""The record of an export: forged or damaged, it is refused."""

import json
from pathlib import Path

import pytest

from reput.export.export_record import RECORD
from store.errors import (
    DamageError,
    UnsupportedFormatError,
)
from tests.support.exporting import export, make_store, offsets_of
from tests.support.verify_stores import messages


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"format": 2}, UnsupportedFormatError),
        ({"format": "1"}, DamageError),
        ({"store": None}, DamageError),
        ({"columns": "body"}, DamageError),
        ({"columns": [1]}, DamageError),
        ({"topics": None}, DamageError),
        ({"exclude_system": 0}, DamageError),
        ({"from_time": "x"}, DamageError),
        ({"begin_offset": -1}, DamageError),
        ({"end_offset": 1e3}, DamageError),
        ({"end_offset": 2**70}, DamageError),
        ({"end_offset": True}, DamageError),
        ({"messages": []}, DamageError),
        ({"last_record": 1}, DamageError),
        ({"last_record": {"offset": 1}}, DamageError),
    ],
)
def test_a_forged_record_is_refused_by_name(
    tmp_path: Path, changes: dict[str, object], error: type[Exception]
) -> None:
    store, to = make_store(tmp_path, messages(3)), tmp_path / "to"
    export(store, to)
    values = json.loads((to / RECORD).read_text())
    (to / RECORD).write_text(json.dumps(values | changes))
    before = offsets_of(to)
    with pytest.raises(error, match=RECORD):
        export(store, to, append=True)
    assert offsets_of(to) == before


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b"[" * 100_000, b'{"format": NaN}'])
def test_a_record_that_is_not_json_is_damage(tmp_path: Path, content: bytes) -> None:
    store, to = make_store(tmp_path, messages(3)), tmp_path / "to"
    export(store, to)
    (to / RECORD).write_bytes(content)
    with pytest.raises(DamageError, match=RECORD):
        export(store, to, append=True)
    (to / RECORD).unlink()
    (to / RECORD).symlink_to("/dev/zero")
    with pytest.raises(DamageError, match="not a regular, small file"):
        export(store, to, append=True)
