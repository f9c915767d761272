"""``reput pending``: messages that the broker holds back, and what became of each; no JVM."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reput.cli.columns import Cell, Column, Fit, Moment
from reput.cli.lines import print_json, say
from reput.cli.options import Json, ReadOptions, Store, opened_store
from reput.cli.show import NOT_FOUND, exit_not_found, progress_bar, raise_damage
from store.errors import ConfigError, shown
from streaming.sources.option_values import TIME_FORMS, parse_time

if TYPE_CHECKING:
    from store.pending.find_pending import Pending, PendingFilter

_COLUMNS = (
    Column("kind"),
    Column("state"),
    Column("topic", Fit.WHOLE),
    Column("queue", rank=4, is_right=True),
    Column("keys", Fit.FOLDED, rank=1),
    Column("unique key", rank=3),
    Column("stored", rank=2),
    Column("due"),
    Column("commit log", rank=5, is_right=True),
    Column("delivered at", rank=6, is_right=True),
    Column("checks", rank=7, is_right=True),
)


@dataclass(frozen=True, slots=True)
class PendingOptions:
    """Which messages to show: every condition must hold."""

    topic: Annotated[list[str] | None, typer.Option(help="Only this real topic (repeatable).")] = (
        None
    )
    kind: Annotated[
        list[str] | None,
        typer.Option(metavar="delay|timer|half", help="Only this kind (repeatable)."),
    ] = None
    due_before: Annotated[str | None, typer.Option(help=f"Due before: {TIME_FORMS}.")] = None
    overdue: Annotated[bool, typer.Option("--overdue", help="Only overdue messages.")] = False
    everything: Annotated[
        bool, typer.Option("--all", help="Also messages delivered, cancelled or given up.")
    ] = False
    as_of: Annotated[
        str | None,
        typer.Option(help="The time that separates waiting from overdue, likewise. Default: now."),
    ] = None


def pending(
    store: Store, wanted: PendingOptions, where: ReadOptions, as_json: Json = False
) -> None:
    """Show delayed, timer and half messages.

    Shows the state of each, from the log and delayOffset.json in STORE/config/; queues are not
    needed. Without --all, shows messages that the broker still holds: waiting, or overdue. Exits
    with 1 if there is none, with 3 if a part of the log is damaged: the rest is read.
    """
    from store.pending.broker_settings import load_hold_settings
    from store.pending.find_pending import find_pending

    pending_filter = _filter(wanted)
    as_of = parse_time("--as-of", wanted.as_of)
    with opened_store(store, where) as s:
        with progress_bar("reading", as_json=as_json) as show:
            found = find_pending(
                s.store_root,
                s.config,
                pending_filter,
                now=time.time_ns() // 1_000_000 if as_of is None else as_of,
                settings=load_hold_settings(s.store_root, where.broker_conf),
                report=show,
            )
        if found.delays.read_from is not None and found.delays.problem:
            say(found.delays.problem)
        for note in found.notes():
            say(note)
        _print(found, as_json=as_json)
        raise_damage(found.damages)
        if not found.rows.num_rows:
            exit_not_found(NOT_FOUND, "no such message is pending", {}, as_json=as_json)


def _filter(wanted: PendingOptions) -> PendingFilter:
    """Parse the conditions. Raises ConfigError."""
    from store.pending.find_pending import PendingFilter
    from store.pending.states import Kind

    for kind in wanted.kind or ():
        if kind not in list(Kind):
            raise ConfigError(f"--kind {shown(kind)} is not one of {', '.join(Kind)}")
    return PendingFilter(
        topics=frozenset(wanted.topic or ()),
        kinds=frozenset(map(Kind, wanted.kind or ())),
        due_before=parse_time("--due-before", wanted.due_before),
        only_overdue=wanted.overdue,
        with_finished=wanted.everything,
    )


def _print(found: Pending, *, as_json: bool) -> None:
    if as_json:
        for row in found.read_rows():
            print_json(row)
        return
    if not found.rows.num_rows:
        return
    from reput.cli.tables import print_table

    print_table(_COLUMNS, map(_row, found.read_rows()), "pending messages")
    _print_summary(found)


def _print_summary(found: Pending) -> None:
    from reput.cli.tables import print_table
    from store.pending.states import STATES

    columns = (
        Column("topic", Fit.WHOLE),
        Column("due in the hour from"),
        *(Column(state.value, is_right=True) for state in STATES),
    )
    rows: Iterator[list[Cell]] = (
        [
            row["topic"],
            "" if row["hour"] is None else Moment(row["hour"]),
            *(str(row[state] or "") for state in STATES),
        ]
        for row in found.summary().rows()
    )
    print_table(columns, rows, "by topic and hour")


def _row(row: dict[str, Any]) -> tuple[Cell, ...]:
    due, delivered, checks = (
        row[name] for name in ("due_timestamp", "delivered_commit_log_offset", "checks")
    )
    return (
        row["kind"],
        row["state"],
        row["topic"],
        str(row["queue_id"]),
        row["keys"] or "",
        row["uniq_key"] or "",
        Moment(row["store_timestamp"]),
        "" if due is None else Moment(due),
        str(row["commit_log_offset"]),
        "" if delivered is None else str(delivered),
        "" if checks is None else str(checks),
    )
