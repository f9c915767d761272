"""Matches in steps of bounded work, which can be stopped at any moment."""

import random
import threading
import time

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from store.errors import SlowExpressionError
from store.regex import match
from store.regex.match import Regex

EXPENSIVE = "(?:" + "[ab]?" * 140 + "){11}c"  # 160 s of CPU for 1 MB
LARGE = bytes(random.Random(1).choices(b"ab", k=1 << 20))


def bodies(*values: bytes | None) -> pa.Array:
    return pa.array(values, pa.binary())


@pytest.mark.parametrize("work", [1, 200, 5000, 1 << 40])
def test_pieces_find_what_one_match_finds(work: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the smallest work, each body is matched by a process."""
    monkeypatch.setattr(match, "_WORK_MAX", work)
    values = [b"", None, *(bytes(random.Random(n).choices(b"abc", k=n)) for n in range(30))]
    regex = Regex.parse("a[bc]?a")
    expected = pc.match_substring_regex(bodies(*values), "a[bc]?a").fill_null(False)
    found = regex.matches(bodies(*values), lambda: False)
    assert expected.to_pylist() == found.tolist()
    sliced = regex.matches(bodies(*values)[7:20], lambda: False)
    assert expected.to_pylist()[7:20] == sliced.tolist()


def test_a_match_in_one_large_body_ends_when_it_is_stopped() -> None:
    stop = threading.Event()
    threading.Timer(0.5, stop.set).start()
    began = time.monotonic()
    assert not Regex.parse(EXPENSIVE).matches(bodies(LARGE), stop.is_set).any()
    assert time.monotonic() - began < 5.0


def test_a_match_in_small_bodies_ends_when_it_is_stopped() -> None:
    stop = threading.Event()
    threading.Timer(0.5, stop.set).start()
    began = time.monotonic()
    small = [LARGE[at : at + 4096] for at in range(0, len(LARGE), 4096)]
    assert not Regex.parse(EXPENSIVE).matches(bodies(*small), stop.is_set).any()
    assert time.monotonic() - began < 10.0


def test_a_body_that_takes_too_long_is_an_error_and_the_next_match_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as m:
        m.setattr(match, "BODY_SECONDS", 0.5)
        with pytest.raises(SlowExpressionError, match="for one body"):
            Regex.parse(EXPENSIVE).matches(bodies(LARGE), lambda: False)
    regex = Regex.parse("(?:" + "[ab]?" * 140 + ")c")
    expected = np.array([True, False])
    found = regex.matches(bodies(LARGE + b"abc", LARGE), lambda: False)
    np.testing.assert_array_equal(expected, found)


def test_a_search_that_waits_for_a_process_can_be_stopped() -> None:
    stop, regex = threading.Event(), Regex.parse(EXPENSIVE)
    threads = [
        threading.Thread(target=regex.matches, args=(bodies(LARGE), stop.is_set)) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    stop.set()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


def test_the_time_of_an_expression_grows_with_its_states_only() -> None:
    """The work of a piece is bounded: RE2 takes no more than some ns for a state and a byte."""
    regex = Regex.parse(EXPENSIVE)
    body = bodies(LARGE[: match._WORK_MAX // regex.states])
    began = time.thread_time()
    regex.matches(body, lambda: False)
    assert time.thread_time() - began < 3.0
