"""``reput status``: how far a dispatch is, and whether it is stuck; no JVM. A health check."""

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
            metavar="PATH", parser=given_output, help="Where the dispatch builds consumequeue/."
        ),
    ],
    stuck_after: Annotated[
        float, typer.Option(metavar="SECONDS", help="How long a message may wait unnoticed.")
    ] = 60.0,
    as_json: Json = False,
) -> None:
    """Show how far a dispatch is; exit 1 if it is stuck.

    Stuck: the next message of the log was stored longer ago than --stuck-after, and as long ago
    anything was dispatched last. One that catches up with an old log is not stuck, nor is one that
    has nothing to do.
    """
    check_seconds("--stuck-after", stuck_after)
    with opened_store(store, RootOptions(output)) as s:
        standing = read_dispatch_status(store, output, s.config)
    now = int(time.time() * 1000)
    stuck_ms = standing.stuck_ms(now)
    is_stuck = stuck_ms > stuck_after * 1000
    if as_json:
        print_json(
            {
                "reput_from_offset": standing.reput_from_offset,
                "progress_timestamp": standing.progress_timestamp,
                "waiting_timestamp": standing.waiting_timestamp,
                "stuck_ms": stuck_ms,
                "is_stuck": is_stuck,
            }
        )
    else:
        print_line(_words(standing, now) + (", nothing was dispatched since" if is_stuck else ""))
    if is_stuck:
        raise typer.Exit(EXIT_NO)


def _words(standing: DispatchStatus, now: int) -> str:
    at = f"dispatched to offset {standing.reput_from_offset:,}"
    if standing.waiting_timestamp is None:
        return f"{at}; nothing waits"
    return f"{at}; a message waits since {duration_text(max(now - standing.waiting_timestamp, 0))}"
