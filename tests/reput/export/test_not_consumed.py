"""An export of what a consumer group has not consumed."""

import json
from pathlib import Path

import pytest

from store.errors import ConfigError
from tests.logs.build import Message
from tests.support.exporting import (
    BEGIN,
    export,
    files_of,
    make_store,
    names_in,
    reput_here,
)

GROUP = "Billing"
RETRY = f"%RETRY%{GROUP}"
# Of Orders, queue 0 has been consumed up to 4 and queue 2 entirely; queue 1 has no offset.
OFFSETS = (
    '{"offsetTable":{"Orders@Billing":{0:4,2:6},"Gone@Billing":{0:3},'
    '"Orders@Other":{0:6,1:6,2:6},"Idle@Other":{0:0}}}'
)
QUEUES = [("Orders", 0), ("Orders", 1), ("Orders", 2), (RETRY, 0), ("Idle", 0)]
EXPECTED = {
    *(("Orders", 0, n) for n in (4, 5)),
    *(("Orders", 1, n) for n in range(6)),
    *((RETRY, 0, n) for n in range(6)),
}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Write six messages to each queue, and the offsets of two groups."""
    sent = [
        Message(topic, queue_id=queue_id, queue_offset=n, store_timestamp=BEGIN + n)
        for n in range(6)
        for topic, queue_id in QUEUES
    ]
    store = make_store(tmp_path, sent)
    (store / "config").mkdir()
    (store / "config/consumerOffset.json").write_text(OFFSETS)
    return store


def found(to: Path) -> set[tuple[str, int, int]]:
    lines = [line for path in files_of(to) for line in path.read_text("utf-8").splitlines()]
    rows = {(r["topic"], r["queue_id"], r["queue_offset"]) for r in map(json.loads, lines)}
    assert len(rows) == len(lines)
    return rows


def test_messages_at_or_past_the_offsets_of_a_group_are_exported(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--not-consumed-by", GROUP, "--format", "jsonl"]
    code, out, _ = reput_here(capsys, "export", store, "--to", tmp_path / "to", *options, "--json")
    assert (code, json.loads(out)["messages"]) == (0, len(EXPECTED))
    assert json.loads(out)["without_messages"] == ["Gone"]
    assert found(tmp_path / "to") == EXPECTED


def test_it_combines_with_topics_and_times(store: Path, tmp_path: Path) -> None:
    retried = {row for row in EXPECTED if row[0] == RETRY and row[2] >= 2}
    to = tmp_path / "to"
    export(
        store, to, not_consumed_by=GROUP, topics=(RETRY,), from_time=BEGIN + 2, file_format="jsonl"
    )
    assert found(to) == retried


def test_a_group_that_has_consumed_everything_exits_with_1(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--not-consumed-by", "Other", "--topic", "Orders"]
    code, _, err = reput_here(capsys, "export", store, "--to", tmp_path / "to", *options)
    assert (code, "of topic Orders that Other has not consumed in the log" in err) == (1, True), err
    assert not (tmp_path / "to").exists()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"not_consumed_by": "Biling"}, "no offset of this group; .* Billing, Other"),
        ({"topics": ("Idle",)}, "--topic .Idle.: Billing has no offset in it; its topics are %RET"),
        ({"append": True}, "the offsets of a group move"),
    ],
)
def test_what_cannot_be_answered_is_refused(
    store: Path, tmp_path: Path, options: dict[str, object], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        export(store, tmp_path / "to", **({"not_consumed_by": GROUP} | options))
    assert not (tmp_path / "to").exists()


def test_missing_offsets_are_refused_and_the_backup_is_announced(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    offsets, to = store / "config/consumerOffset.json", tmp_path / "to"
    offsets.rename(f"{offsets}.bak")
    options = ["--to", to, "--not-consumed-by", GROUP, "--format", "jsonl"]
    code, _, err = reput_here(capsys, "export", store, *options)
    assert (code, "read from consumerOffset.json.bak instead" in err) == (0, True), err
    assert found(to) == EXPECTED
    Path(f"{offsets}.bak").unlink()
    with pytest.raises(ConfigError, match=r"no committed offset is known: .* is missing"):
        export(store, tmp_path / "other", not_consumed_by=GROUP)


def test_no_other_export_appends_to_it(store: Path, tmp_path: Path) -> None:
    to = tmp_path / "to"
    export(store, to, not_consumed_by=GROUP, topics=("Orders",))
    before = names_in(to)
    with pytest.raises(ConfigError, match="not_consumed_by is 'Billing' there, none here"):
        export(store, to, append=True, topics=("Orders",))
    assert names_in(to) == before
