"""The search for a queue offset by time, on arbitrary store times."""

from bisect import bisect_left, bisect_right

from hypothesis import given
from hypothesis import strategies as st

from store.consumequeue.time_search import Boundary, find_offset
from tests.support.reads_scan import is_lower, is_upper

TIMES = st.lists(st.integers(0, 30), min_size=1, max_size=40)


def find_both(times: list[int], first: int, timestamp: int) -> list[int]:
    """Return both boundaries, as positions relative to `first`."""
    span = first, len(times)
    return [
        find_offset(span, timestamp, boundary=b, store_time=times.__getitem__) - first
        for b in Boundary
    ]


@given(TIMES, st.integers(-1, 31), st.data())
def test_rising_times_give_the_exact_boundary(
    times: list[int], timestamp: int, data: st.DataObject
) -> None:
    times.sort()
    first = data.draw(st.integers(0, len(times) - 1))
    lower, upper = find_both(times, first, timestamp)
    assert first + lower == max(bisect_left(times, timestamp), first)
    assert first + upper == max(bisect_right(times, timestamp) - 1, first)


@given(TIMES, st.integers(-1, 31))
def test_times_that_step_back_give_a_crossing_point(times: list[int], timestamp: int) -> None:
    lower, upper = find_both(times, 0, timestamp)
    assert is_lower(times, timestamp, lower)
    assert is_upper(times, timestamp, upper)


def test_a_queue_whose_messages_have_all_expired_gives_its_end() -> None:
    for boundary in Boundary:
        assert find_offset((5, 5), 7, boundary=boundary, store_time=lambda _: -1) == 5
