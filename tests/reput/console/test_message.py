"""A message in words: its body, its flags, its properties, and what it was made from."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reput.console.message_view import (
    hex_lines,
    pretty_json,
    properties_text,
    related,
    sys_flag_text,
)
from store.commitlog.record import Message, decode_message
from tests.logs.build import Message as Sent
from tests.logs.build import build_log

JSON = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(st.lists(JSON) | st.dictionaries(st.text(), JSON))
def test_pretty_json_equals_python_s(value: Any) -> None:
    expected = json.dumps(value, indent=2, ensure_ascii=False)
    data = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    if json.loads(data) == value:
        assert expected == pretty_json(data)


@pytest.mark.parametrize("body", [b"1", b"text", b"{", b"[1,]", b"\xff", b"", b'"x"', b"{} x"])
def test_a_body_that_is_no_object_or_array_is_not_json(body: bytes) -> None:
    assert pretty_json(body) is None


def test_digits_and_repeated_names_are_kept() -> None:
    text = '{"a": 1.00000000000000000000001, "a": 1e400}'
    assert text.replace("{", "{\n  ").replace(", ", ",\n  ").replace("}", "\n}") == pretty_json(
        text.encode()
    )


@pytest.mark.parametrize("body", [b"[" * 5000, b"[" * 900 + b"1," * 300_000 + b"1" + b"]" * 900])
def test_json_that_would_become_huge_is_left_alone(body: bytes) -> None:
    assert pretty_json(body) is None


def test_hex_lines_show_16_bytes_each() -> None:
    lines = hex_lines(bytes(range(20)) + b"<script>")
    assert [line["offset"] for line in lines] == [0, 16]
    assert lines[1] == {
        "offset": 16, "hex": "10 11 12 13 3c 73 63 72 69 70 74 3e", "ascii": "....<script>",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("flag", "expected"),
    [
        (0, []),
        (0x1, ["body compressed (zlib)"]),
        (0x201, ["body compressed (Zstandard)"]),
        (0x4, ["transaction: prepared (half message)"]),
        (0xC | 0x10, ["transaction: rolled back", "producer's address is IPv6"]),
    ],
)
def test_flags_in_words(flag: int, expected: list[str]) -> None:
    assert expected == sys_flag_text(flag)


@pytest.mark.parametrize("value", ["x", "", "9" * 400, "-1"])
def test_a_property_with_a_hostile_value_is_shown(value: str) -> None:
    names = ("TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "KEYS", "other")
    found = properties_text(dict.fromkeys(names, value))
    assert set(found) == {"TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "KEYS"}


def test_the_property_that_names_the_half_message_is_explained() -> None:
    found = properties_text({"TRAN_PREPARED_QUEUE_OFFSET": "7"})
    assert found == {"TRAN_PREPARED_QUEUE_OFFSET": "queue offset of the half message"}


def made(**fields: Any) -> Message:
    record = build_log([Sent(**fields)], 4096)[0]
    return decode_message(record, 0, offset=0, path="log", splits_properties=False)[0]


def test_a_commit_names_its_half_message() -> None:
    message = made(sys_flag=0x8)._replace(prepared_transaction_offset=77)
    (link,) = related(message)
    assert (link["relation"], link["commit_log_offset"]) == ("half", 77)
