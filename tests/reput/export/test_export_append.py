"""Appending to an export: it continues where the last one ended, or is refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from store.errors import (
    ConfigError,
    DamageError,
    LostDataError,
)
from tests.logs.build import Message, build_log, write_log
from tests.support.exporting import (
    BEGIN,
    export,
    grow,
    make_store,
    names_in,
    offsets_of,
    reput_here,
)
from tests.support.stores.aged import log_files
from tests.support.verify_stores import CONFIG, messages


def test_appending_exports_exactly_what_follows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, to = make_store(tmp_path, messages(20)), tmp_path / "to"
    first = export(store, to, append=True)
    grow(store, 50)
    second = export(store, to, append=True)
    assert (first.messages, second.messages) == (20, 30)
    assert second.begin_offset == first.end_offset
    export(store, tmp_path / "all")
    assert offsets_of(to) == offsets_of(tmp_path / "all")
    code, out, _ = reput_here(capsys, "export", store, "--to", to, "--append", "--json")
    assert (code, json.loads(out)["messages"], json.loads(out)["files"]) == (0, 0, 0)
    assert offsets_of(to) == offsets_of(tmp_path / "all")


def test_an_end_time_loses_nothing_where_the_clock_stepped_back(tmp_path: Path) -> None:
    times = [0, 5, 6, 2, 9, 3, 20]
    sent = [Message(queue_offset=n, store_timestamp=BEGIN + t) for n, t in enumerate(times)]
    store, to = make_store(tmp_path, sent), tmp_path / "to"
    counts = [export(store, to, append=True, to_time=BEGIN + t).messages for t in (5, 5, 8, 1, 100)]
    assert sum(counts) == len(times)
    assert len(set(offsets_of(to))) == len(times)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"file_format": "jsonl"}, "file_format is 'parquet' there, 'jsonl' here"),
        ({"compression": "zstd"}, "compression is 'snappy' there, 'zstd' here"),
        ({"columns": ("body",)}, "columns is"),
        ({"topics": ("TopicTest",)}, "topics is all there, TopicTest here"),
        ({"exclude_system": True}, "exclude_system is false there, true here"),
        ({"from_time": BEGIN}, "from_time is none there"),
    ],
)
def test_other_settings_are_refused(tmp_path: Path, options: dict[str, Any], reason: str) -> None:
    store, to = make_store(tmp_path, messages(3)), tmp_path / "to"
    export(store, to)
    before = offsets_of(to), names_in(to)
    with pytest.raises(ConfigError, match=reason):
        export(store, to, append=True, **options)
    other = make_store(tmp_path / "other", messages(3))
    with pytest.raises(ConfigError, match="store is "):
        export(other, to, append=True)
    assert (offsets_of(to), names_in(to)) == before


def test_messages_that_expired_since_the_last_export_are_lost_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, to = make_store(tmp_path, messages(5)), tmp_path / "to"
    end = export(store, to).end_offset
    grow(store, 60)
    log_files(store)[0].unlink()
    with pytest.raises(LostDataError, match=f"offsets {end} to 4096 are lost"):
        export(store, to, append=True)
    code, _, err = reput_here(capsys, "export", store, "--to", to, "--append")
    assert (code, err.count("\n")) == (3, 1)
    done = export(store, to, append=True, fail_on_data_loss=False)
    assert done.begin_offset == 4096
    assert len(offsets_of(to)) == 5 + done.messages


def test_a_log_that_changed_where_the_last_export_ended_is_refused(tmp_path: Path) -> None:
    store, to = make_store(tmp_path, messages(5)), tmp_path / "to"
    export(store, to)
    other = [replace(m, properties=[("TAGS", "B"), ("KEYS", "k0 common")]) for m in messages(9)]
    write_log(build_log(other, CONFIG.mapped_file_size_commit_log), store / "commitlog")
    before = offsets_of(to)
    with pytest.raises(DamageError, match="the log changed"):
        export(store, to, append=True)
    assert offsets_of(to) == before
