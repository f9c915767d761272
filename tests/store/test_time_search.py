"""Time to queue offset on queues of any times and file cuts."""

from bisect import bisect_left, bisect_right

from hypothesis import given
from hypothesis import strategies as st

from store.time_search import Boundary, find_offset

TIMES = st.lists(st.integers(0, 30), min_size=1, max_size=40)


def cut(count: int, per_file: int, begin: int) -> list[tuple[int, int]]:
    """Return the spans of files that hold units `begin` to `count`."""
    first = begin - begin % per_file
    starts = range(first, count, per_file)
    return [(start, min(start + per_file, count)) for start in starts]


@given(TIMES, st.integers(1, 9), st.integers(-1, 31), st.data())
def test_rising_times_give_the_exact_boundary(
    times: list[int], per_file: int, timestamp: int, data: st.DataObject
) -> None:
    times.sort()
    first, end = data.draw(st.integers(0, len(times) - 1)), len(times)
    files = cut(end, per_file, first)

    def store_time(offset: int) -> int:
        return times[offset] if offset >= first else -1

    found = {
        b: find_offset(files, (first, end), timestamp, boundary=b, store_time=store_time)
        for b in Boundary
    }
    assert found[Boundary.LOWER] == max(bisect_left(times, timestamp), first)
    assert found[Boundary.UPPER] == max(bisect_right(times, timestamp) - 1, first)


@given(TIMES, st.integers(1, 9), st.integers(-1, 31))
def test_times_that_step_back_give_an_offset_of_the_queue(
    times: list[int], per_file: int, timestamp: int
) -> None:
    end = len(times)
    for boundary in Boundary:
        found = find_offset(
            cut(end, per_file, 0),
            (0, end),
            timestamp,
            boundary=boundary,
            store_time=times.__getitem__,
        )
        assert 0 <= found <= end


def test_a_queue_whose_messages_have_all_expired_gives_its_end() -> None:
    for boundary in Boundary:
        found = find_offset([(0, 5)], (5, 5), 7, boundary=boundary, store_time=lambda _: -1)
        assert found == 5
