"""A store that has no commit log when the console starts, beside others that have one."""

from pathlib import Path

import pytest

from reput.console.brokers import Broker
from reput.console.security import ConsoleSettings
from store.errors import ConfigError, StoreIOError
from tests.support.consoles import SECONDS, source
from tests.support.stores.written import make_store


def test_a_store_that_gets_its_log_later_is_a_problem_until_then(tmp_path: Path) -> None:
    late, root = tmp_path / "late", tmp_path / "b"
    make_store(late, 30)
    make_store(root, 30)
    for log, is_same in ((late / "commitlog", True), (root / "commitlog", False)):
        log.rename(tmp_path / "away")
        if not is_same:
            (root / "broker.conf").rename(tmp_path / "conf")
        broker = Broker(source(log.parent), ConsoleSettings(), may_lack_log=True)
        with pytest.raises(StoreIOError, match=r"it has no file \(is a file system not mounted"):
            broker.check_log()
        assert "commitlog does not exist" in str(broker_problem(broker))
        (tmp_path / "away").rename(log)
        if is_same:
            broker.check_log()
            assert broker.status()["log_max_offset"] > 0
        else:
            (tmp_path / "conf").rename(root / "broker.conf")
            with pytest.raises(ConfigError, match="restart reput serve"):
                broker.check_log()
        broker.close()


def broker_problem(broker: Broker) -> str | None:
    """Return the problem once the broker has been listed."""
    broker.overview.get(SECONDS)
    problem: str | None = broker.status()["problem"]
    return problem
