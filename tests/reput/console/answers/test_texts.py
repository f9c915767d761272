"""Messages and objects as texts in parts equal those that are made at once."""

import csv
import io
import json
import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reput.console.answers import messages, stream
from reput.console.answers.messages import CSV_FIELDS, csv_of, json_of
from reput.console.answers.stream import json_parts
from store.commitlog.message_json import message_json
from store.commitlog.record import Message, decode_message
from store.layout import SYS_COMPRESSED
from tests.logs.build import Message as Sent
from tests.logs.build import build_log

BODIES = [
    b"",
    b"plain",
    b'quotes " and \\ and\r\nlines,',
    "Zeichen: äöü € 😀 ".encode() * 5,
    b"=1+1 is a formula of a spreadsheet",
    b"\x01\x02\x1f" * 20,
    b"\xff\xfe" * 20,
    b"text, then \x00",
    "cut: €".encode()[:-1],
    b"x" * 100_000,
]


def message_of(body: bytes, *, is_compressed: bool) -> Message:
    stored = zlib.compress(body) if is_compressed else body
    flag = SYS_COMPRESSED if is_compressed else 0
    record = build_log([Sent(body=stored, sys_flag=flag, properties=[("KEYS", "k")])], 1 << 20)[0]
    return decode_message(record, 0, offset=0, path="log", splits_properties=False)[0]


@pytest.mark.parametrize("large_bytes", [0, 10, 1 << 20])
@pytest.mark.parametrize("is_compressed", [True, False])
@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
def test_a_message_in_parts_equals_one_at_once(
    body: bytes, *, is_compressed: bool, large_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "_LARGE_BYTES", large_bytes)
    monkeypatch.setattr(messages, "_PART_BYTES", 7 if len(body) < 1000 else 65536)
    message = message_of(body, is_compressed=is_compressed)
    expected: dict[str, Any] = {**message_json(message), "broker": "b"}
    parts = list(json_of("b", "\n")(message))
    assert "".join(parts) == json.dumps(expected) + "\n"
    (row,) = csv.DictReader(io.StringIO("".join(csv_of("b")(message)), newline=""), CSV_FIELDS)
    text = expected["body"]
    assert row["body"] == (f"'{text}" if text.startswith("=") else text)
    assert (row["broker"], row["body_encoding"]) == ("b", expected["body_encoding"])
    assert not row["body_error"]
    if len(body) > max(large_bytes, 1000):
        assert max(map(len, parts)) < 70_000


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@settings(max_examples=30)
@given(st.dictionaries(st.text(), JSON))
def test_an_object_in_parts_equals_one_at_once(data: dict[str, Any]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "_LONG", 1)
        assert "".join(json_parts(data)) == json.dumps(data)


def test_a_long_list_within_an_object_is_divided() -> None:
    rows = [{"group": "g", "by_queue": [{"queue_id": n} for n in range(10_000)]}]
    parts = list(json_parts({"groups": rows}))
    assert max(map(len, parts)) < 100
    assert json.loads("".join(parts)) == {"groups": rows}
