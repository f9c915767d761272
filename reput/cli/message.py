"""``reput message``: one message by its commit log offset or id; no JVM."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from reput.cli.lines import print_json
from reput.cli.options import Json, MaxBodyBytes, ReadOptions, Store, opened_store
from reput.cli.show import NOT_FOUND, exit_not_found, print_details
from store import Message, MessageStore
from store.commitlog.message_json import message_json
from store.commitlog.record import decode_msg_id
from store.errors import ConfigError
from store.io.new_file import write_new_file
from store.io.user_path import given_path


@dataclass(frozen=True, slots=True)
class MessageOptions:
    """The message to show, and the file for its body."""

    commit_log_offset: Annotated[
        int | None, typer.Option(help="The physical offset of its record in the log.")
    ] = None
    msg_id: Annotated[
        str | None, typer.Option("--id", help="Its offset message id: 32 or 56 hex digits.")
    ] = None
    body_to: Annotated[
        Path | None,
        typer.Option(
            "--body-to",
            metavar="FILE",
            parser=given_path,
            help="Write the decompressed body to this new file.",
        ),
    ] = None
    max_body_bytes: MaxBodyBytes = None


def message(
    store: Store, wanted: MessageOptions, where: ReadOptions, as_json: Json = False
) -> None:
    """Show one message by its commit log offset or id.

    Exits with 1 if no message begins there. A client's own message id is a unique key: see query.
    """
    commit_log_offset, msg_id = wanted.commit_log_offset, wanted.msg_id
    if (commit_log_offset is None) == (msg_id is None):
        raise ConfigError("give either --commit-log-offset or --id")
    host = ""
    if msg_id is not None:
        host, commit_log_offset = decode_msg_id(msg_id)
    assert commit_log_offset is not None
    with opened_store(store, where, wanted.max_body_bytes) as s:
        found = s.look_message_by_offset(commit_log_offset)
        reason = ""
        if found is None:
            reason = _why_no_record(s, commit_log_offset)
        elif host and found.store_host != host:
            reason = f"the record there was stored by {found.store_host}, the id names {host}"
        if found is None or reason:
            reason = f"no message at commit log offset {commit_log_offset}: {reason}"
            if msg_id is not None:
                reason = _no_such_id(msg_id, reason if commit_log_offset >= 0 else "")
            answer = {"commit_log_offset": commit_log_offset}
            exit_not_found(NOT_FOUND, reason, answer, as_json=as_json)
        if wanted.body_to is not None:
            _write_body(found, wanted.body_to)
        if as_json:
            print_json(message_json(found))
        else:
            print_details(found)


def _no_such_id(msg_id: str, reason: str) -> str:
    why = f" ({reason})" if reason else ""
    return (
        f"{msg_id} is not the message id of a message in this store{why}; a client's unique key: "
        f"reput query --topic T --key {msg_id}"
    )


def _write_body(found: Message, path: Path) -> None:
    """Write a body to a new file; an existing file, of a store or not, is never overwritten."""
    body = found.read_body()
    try:
        write_new_file(path, [body])
    except FileExistsError as e:
        raise ConfigError(f"--body-to {path} already exists; name a new file") from e


def _why_no_record(s: MessageStore, at: int) -> str:
    first, end = s.min_phy_offset(), s.max_phy_offset()
    if first < 0 or first == end:
        return "the log is empty"
    if at < 0:
        return "that is not an offset in any log"
    if at < first:
        return f"it has expired; the log begins at {first}"
    return f"the log ends at {end}" if at >= end else "no record begins there"
