"""What a console shows while it cannot list topics and queues: a bug, or a log without queues."""

import re
from pathlib import Path

import pytest

from streaming.web import overview
from tests.support.consoles import Console, console, source, wait_until
from tests.support.dispatching import dispatch_all
from tests.support.stores.written import make_store


def has_failed(c: Console) -> int:
    """Return the metric that alerts."""
    found = re.search(
        r"^reput_store_read_failed\{.*\} ([01])", c.get("/metrics").text, re.MULTILINE
    )
    assert found is not None
    return int(found[1])


@pytest.mark.parametrize("where", ["describe_topics", "_count_files"])
def test_a_bug_in_a_listing_is_a_problem_until_a_listing_succeeds(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    where: str,
) -> None:
    def fail(*_: object) -> None:
        raise KeyError("x")

    root, output = tmp_path / "store", tmp_path / "out"
    dispatch_all(root, output, make_store(root, 30))
    with monkeypatch.context() as patch, console(source(root, output)) as c:
        patch.setattr(overview, where, fail)
        c.api("b")
        wait_until(lambda: c.api("b/status")["problem"] is not None)
        assert c.api("b/status")["problem"].startswith("internal error: KeyError")
        assert c.get("/api/brokers").json()["brokers"][0]["problem"] is not None
        for page in ("", "/health"):
            assert "internal error: KeyError" in c.get(f"/brokers/b{page}").text
        if where == "describe_topics":
            assert "Groups cannot be listed:" in c.get("/brokers/b/groups").text
        assert has_failed(c) == 1
        patch.undo()
        wait_until(lambda: c.api("b")["status"]["problem"] is None)
        assert has_failed(c) == 0
        assert c.api("b")["topics"]
    assert [r.exc_info is not None for r in caplog.records if "listed" in r.getMessage()] == [True]
