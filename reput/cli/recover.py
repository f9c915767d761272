"""``reput recover``: roll OUTPUT back to a record boundary, as the next start would; no JVM."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from reput.cli.lines import print_json, print_line, say, shows_progress
from reput.cli.options import (
    BrokerOptions,
    Json,
    Store,
    describe_settings,
    output_option,
)
from store.errors import ConfigError

if TYPE_CHECKING:
    from checkpoints.recovery.adoption import RecoveryReporter
    from checkpoints.recovery.steps import Recovered


def recover(
    store: Store,
    output: Annotated[
        Path,
        output_option("the directory of consumequeue/ and index/"),
    ],
    broker: BrokerOptions,
    as_json: Json = False,
) -> None:
    """Recover OUTPUT now, as the next dispatch would.

    Truncates what a crash left after the last batch. Rolls back to the last common record if the
    log came back shorter or with other messages. Adopts a broker's files, truncated to the prefix
    that matches its log. Reports what was found, what was truncated, why, and how long it took.
    """
    from checkpoints.allowed_output import is_empty
    from checkpoints.output import DispatchOutput
    from checkpoints.recovery.reports import record_recoveries
    from store.output.progress import read_progress_view
    from store.output.resolve_config import open_store_config

    if not output.is_dir() or is_empty(output):
        raise ConfigError(
            f"{output} contains nothing to recover; reput dispatch or reput rebuild builds a new "
            "OUTPUT"
        )
    needs_log = read_progress_view(output) is None
    config = open_store_config(
        store, output, broker.broker_conf, broker.broker_version, needs_log=needs_log
    )
    if not as_json:
        say(describe_settings(config))
    with recovery_progress(as_json=as_json) as report:
        owned = DispatchOutput.open(output, store, config, adopts=True, report=report)
        try:
            record_recoveries(output, owned.recovered, owned.disk)
        finally:
            owned.close(clean=True)
    for recovered in owned.recovered:
        if as_json:
            print_json({"event": "recovered", **recovered_json(recovered)})
        else:
            print_line(recovered_line(recovered))
    at = owned.progress.reput_from_offset
    if as_json:
        print_json({"event": "ready", "output": str(output), "reput_from_offset": at})
    else:
        nothing = "" if owned.recovered else "nothing to recover: "
        print_line(f"{nothing}a dispatch into {output} resumes at offset {at}")


def recovered_line(recovered: Recovered) -> str:
    """Return one line about what a recovery did."""
    cut, at = recovered.cut, recovered.to_offset
    if recovered.from_offset == at and not any(asdict(cut).values()):
        return f"recovered ({recovered.why}): at offset {at:,}; {recovered.seconds:.2f} s"
    return (
        f"recovered ({recovered.why}): rolled back from offset {recovered.from_offset:,} "
        f"to {at:,}; queues checked: {cut.queues:,}; truncated: {cut.units:,} units, "
        f"{cut.ext_units:,} ext units, {cut.index_entries:,} index entries; files removed: "
        f"{cut.files:,}; {recovered.seconds:.2f} s"
    )


def recovered_json(recovered: Recovered) -> dict[str, Any]:
    """Return what a recovery did as JSON values."""
    return asdict(recovered)


@contextmanager
def recovery_progress(*, as_json: bool) -> Iterator[RecoveryReporter | None]:
    """Show the progress of a recovery, on a terminal."""
    if not shows_progress(as_json=as_json):
        yield None
        return
    from rich.progress import MofNCompleteColumn

    from reput.cli.bars import progress_on_terminal

    with progress_on_terminal("recovering", MofNCompleteColumn()) as report:
        yield report
