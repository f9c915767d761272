"""``reput status``: the status of a dispatch, as a health check; no JVM."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reput.cli import EXIT_NO
from reput.cli.lines import duration_text, print_json, print_line
from reput.cli.options import (
    BrokerOptions,
    Json,
    ReadOptions,
    Store,
    StuckAfter,
    check_seconds,
    opened_store,
    output_option,
)
from store.commitlog.commit_log import CommitLog
from store.io.lock_file import find_owner
from store.java import now_ms
from store.layout import LOCK_FILE
from store.output.dispatch_status import DispatchStatus, read_dispatch_status, status_json
from store.printable import size_text


def status(
    store: Store,
    output: Annotated[
        Path,
        output_option("The directory that the dispatch builds."),
    ],
    broker: BrokerOptions,
    stuck_after: StuckAfter = 60.0,
    as_json: Json = False,
) -> None:
    """Show the status of a dispatch; exit 1 if it is stuck.

    A dispatch is running if a process holds the lock of OUTPUT, which is asked for, never taken.

    Stuck: the next message in the log was stored longer ago than --stuck-after, and nothing has
    been dispatched for that long. A dispatch that is catching up with an old log, or has no
    backlog, is not stuck.
    """
    check_seconds("--stuck-after", stuck_after)
    where = ReadOptions(output, broker.broker_conf, broker.broker_version)
    with opened_store(store, where) as s:
        log = CommitLog(s.config.commit_log_paths(store), s.config)
        dispatch = read_dispatch_status(log, output)
    is_running = find_owner(output / LOCK_FILE) is not None
    now = now_ms()
    is_stuck = dispatch.stuck_ms(now) > stuck_after * 1000
    if as_json:
        fields = {"reput_from_offset": dispatch.reput_from_offset, "is_running": is_running}
        print_json(fields | status_json(dispatch, now, is_stuck=is_stuck))
    else:
        text = status_text("dispatched", dispatch, now, is_stuck=is_stuck)
        print_line(text if is_running else f"{text}; no process is running")
    if is_stuck:
        raise typer.Exit(EXIT_NO)


def status_text(done: str, status: DispatchStatus, now: int, *, is_stuck: bool) -> str:
    """Return a status as one line; ``done`` is what has been done with the log."""
    text = f"{done} to offset {status.reput_from_offset:,}"
    if status.waiting_timestamp is None:
        return f"{text}; no backlog"
    waiting = duration_text(status.behind_ms(now))
    text += f"; {size_text(status.behind_bytes)} behind, a message has been waiting for {waiting}"
    return f"{text}, nothing {done} since" if is_stuck else text
