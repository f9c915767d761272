"""A log scanned by one plan."""

from pathlib import Path

from store.commitlog.commit_log import CommitLog
from store.commitlog.dispatch_request import DispatchRequests
from store.commitlog.planner import LogPlanner
from store.commitlog.scanner import Damage, Scanner
from store.config import StoreConfig


def log_of(store_root: Path, config: StoreConfig) -> tuple[CommitLog, LogPlanner]:
    log = CommitLog(config.commit_log_paths(store_root), config)
    return log, LogPlanner(log, lambda: True)


def by_walk(
    store_root: Path, config: StoreConfig, begin: int
) -> tuple[list[DispatchRequests], Damage | None]:
    """Return the requests of the whole log by one plan, and its damage."""
    _, planner = log_of(store_root, config)
    found = Scanner(config).read_all(planner.plan(begin, until=planner.end()).ranges)
    damage = next((s for s in found if isinstance(s, Damage)), None)
    return [s for s in found if isinstance(s, DispatchRequests)], damage
