"""``reput status``: the status of a dispatch, as a health check; no JVM."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from store.io.user_path import given_output
from store.root.status import DispatchStatus, read_dispatch_status
from streaming.cli import EXIT_NO
from streaming.cli.lines import duration_text, print_json, print_line
from streaming.cli.options import Json, RootOptions, Store, check_seconds, opened_store


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(status)


def status(
    store: Store,
    output: Annotated[
        Path,
        typer.Option(
            metavar="PATH", parser=given_output, help="The root that the dispatch builds."
        ),
    ],
    stuck_after: Annotated[
        float, typer.Option(metavar="SECONDS", help="How long a message may wait without progress.")
    ] = 60.0,
    as_json: Json = False,
) -> None:
    """Show the status of a dispatch; exit 1 if it is stuck.

    Stuck: the next message in the log was stored longer ago than --stuck-after, and nothing has
    been dispatched for that long. A dispatch that is catching up with an old log, or has no
    backlog, is not stuck.
    """
    check_seconds("--stuck-after", stuck_after)
    with opened_store(store, RootOptions(output)) as s:
        dispatch = read_dispatch_status(store, output, s.config)
    now = int(time.time() * 1000)
    stuck_ms = dispatch.stuck_ms(now)
    is_stuck = stuck_ms > stuck_after * 1000
    if as_json:
        print_json(
            {
                "reput_from_offset": dispatch.reput_from_offset,
                "progress_timestamp": dispatch.progress_timestamp,
                "waiting_timestamp": dispatch.waiting_timestamp,
                "stuck_ms": stuck_ms,
                "is_stuck": is_stuck,
            }
        )
    else:
        print_line(_summary(dispatch, now) + (", nothing dispatched since" if is_stuck else ""))
    if is_stuck:
        raise typer.Exit(EXIT_NO)


def _summary(dispatch: DispatchStatus, now: int) -> str:
    text = f"dispatched to offset {dispatch.reput_from_offset:,}"
    if dispatch.waiting_timestamp is None:
        return f"{text}; no backlog"
    waiting = duration_text(max(now - dispatch.waiting_timestamp, 0))
    return f"{text}; a message has been waiting for {waiting}"
