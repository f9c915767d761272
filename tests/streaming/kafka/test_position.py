"""Positions: bytes that earlier releases wrote, and bytes that nobody wrote."""

import json
from typing import Any

import pytest

from store.errors import ConfigError
from store.output.progress import Fingerprint
from streaming.kafka.position import Position, decode_position, encode_position

# Written by a mirror of version 1, but for the path.
WRITTEN_BEFORE = (
    b'{"commit_log_offset": 350411, "last_record": {"body_crc": 1702767079, "offset": 350272, '
    b'"record_crc": 2400956557, "size": 139, "store_timestamp": 1795391370391}, "lost_to": 0, '
    b'"messages": 2576, "store": "/data/store", "version": 1}'
)
BEFORE = Position(
    350_411,
    Fingerprint(350_272, 139, 1_795_391_370_391, 1_702_767_079, 2_400_956_557),
    0,
    "/data/store",
    2_576,
)


def test_a_position_of_an_earlier_release_is_read() -> None:
    assert decode_position(WRITTEN_BEFORE, "m") == BEFORE


def test_a_position_without_oversized_messages_is_written_as_before() -> None:
    assert encode_position(BEFORE) == WRITTEN_BEFORE


def test_a_position_with_oversized_messages_has_a_version_that_earlier_releases_refuse() -> None:
    position = Position(5, None, 0, "s", 3, 2)
    encoded = encode_position(position)
    assert json.loads(encoded)["version"] == 2
    assert decode_position(encoded, "m") == position


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"commit_log_offset": "27"}, "commit_log_offset: '27' is not a 64-bit integer"),
        ({"commit_log_offset": -1}, "commit_log_offset: -1 is not"),
        ({"commit_log_offset": 1.5}, "commit_log_offset: 1.5 is not"),
        ({"messages": True}, "messages: True is not"),
        ({"messages": None}, "messages: None is not"),
        ({"lost_to": []}, r"lost_to: \[\] is not"),
        ({"store": 7}, "store: 7 is not a text"),
        ({"oversized": "many"}, "oversized: 'many' is not"),
        ({"last_record": 3}, "last_record: 3 is not an object"),
        ({"last_record": {}}, "last_record: .*missing"),
        ({"more": 1}, "'more' is not a field"),
        ({"version": 3}, "has version 3; this release reads 1 and 2"),
        ({"version": "x"}, "has version"),
        ({"version": [1]}, "has version"),
    ],
)
def test_a_forged_position_is_refused_with_the_field(change: dict[str, Any], part: str) -> None:
    values = {**json.loads(WRITTEN_BEFORE), **change}
    with pytest.raises(ConfigError, match=f"the position of mirror 'm' .*{part}"):
        decode_position(json.dumps(values).encode(), "m")


@pytest.mark.parametrize(
    "value", [None, b"", b"{}", b"[]", b"1", b"null", b'"x"', b"\xff", b"{", b"[" * 100_000]
)
def test_what_is_no_position_is_refused(value: bytes | None) -> None:
    with pytest.raises(ConfigError, match="the position of mirror 'm' cannot be read"):
        decode_position(value, "m")
