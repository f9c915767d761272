"""Tests that share a process when they run in parallel."""

from pathlib import Path

import pytest

from tests.support.groups import HALF_OF_SOURCES, LONGEST, group_of

SOURCES, CLI = "tests/streaming/sources", "tests/reput/cli"
SERVERS = "tests/integration"


@pytest.mark.parametrize(
    ("test", "group"),
    [
        (f"{CLI}/test_dispatch.py::test_a_query_that_ends_by_itself_is_an_error", "spark"),
        (f"{SOURCES}/test_messages.py::test_body_can_be_omitted", "spark-sources"),
        # A fixture that every test of the module gets needs the session.
        (f"{SOURCES}/test_many_stores.py::test_a_malformed_option_is_named[a-b]", "spark-stores"),
        (
            f"{SERVERS}/test_live_store.py::test_reads[4.8.0]",
            f"{SERVERS}/test_live_store.py[4.8.0]",
        ),
        (f"{SERVERS}/mirror/test_x.py::test_y[127.0.0.1:1]", f"{SERVERS}/mirror/test_x.py"),
    ],
)
def test_group(test: str, group: str) -> None:
    assert group == group_of(test)


def test_a_test_that_needs_neither_is_a_group_of_its_own() -> None:
    test = f"{CLI}/test_dispatch.py::test_stores_of_other_kinds_exit_with_5[a-b]"
    assert group_of(test) == test


def test_the_modules_that_are_named_exist() -> None:
    top = Path(__file__).parents[1]
    names = [*LONGEST, *(f"{SOURCES}/{name}" for name in HALF_OF_SOURCES)]
    assert [name for name in names if not (top / name).is_file()] == []
