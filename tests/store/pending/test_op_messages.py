"""OP messages that a broker does not write, or more than fit into memory."""

import zlib
from pathlib import Path

import pytest

from store.layout import SYS_COMPRESSED
from tests.logs.build import Message
from tests.store.pending.test_pending import HALF, OP, find, held, op, states


def test_an_op_message_that_is_too_large_is_damage_and_hides_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("store.pending.held_messages._OP_BODY_MAX", 1000)
    bomb = Message(
        OP, body=zlib.compress(b"0," * 600), sys_flag=SYS_COMPRESSED, properties=[("TAGS", "d")]
    )
    found = find(tmp_path, [held(HALF, "a", 0), bomb, held(HALF, "b", 0, queue_offset=1), op("1")])
    assert states(found) == {"a": "waiting", "b": "cancelled"}
    (damage,) = found.damages
    assert damage.reason == "the body has more than 1000 bytes"


def test_the_last_of_many_op_messages_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their offsets may be more than fit into memory."""
    monkeypatch.setattr("store.io.spilled_totals._ROWS_MAX", 4)
    many = [op(",".join(map(str, range(n, n + 9)))) for n in (5, 8, 11)]
    halves = [held(HALF, f"{n}", 0, queue_offset=n) for n in (0, 7)]
    found = find(tmp_path, [op("7"), *halves, *many, op("30")])
    assert states(found) == {"0": "waiting", "7": "cancelled"}
