"""The reports of the last recovery and the last verification, and who sees them."""

import json
from pathlib import Path
from typing import Any

import pytest

from checkpoints.recovery.reports import read_recovery, read_verification
from checkpoints.state_paths import VERIFIED
from reput.cli import run
from store.errors import DamageError
from store.io.disk import Disk
from tests.support.dispatching import dispatch_all
from tests.support.stores.written import make_store, small_config

Made = tuple[Path, Path]


@pytest.fixture
def made(tmp_path: Path) -> Made:
    store, output = tmp_path / "store", tmp_path / "out"
    make_store(store, 300)
    dispatch_all(store, output, small_config())
    return store, output


def reput(*arguments: object) -> int:
    return run([*map(str, arguments)])


def test_a_recovery_is_recorded(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    store, output = made
    assert read_recovery(output) is None
    (output / "consumequeue" / "TopicA" / "0" / f"{0:020d}").write_bytes(bytes(2000))
    (output / "abort").touch()  # as if a broker had run on it
    (output / "checkpoint").write_bytes(bytes(4096))
    assert reput("recover", store, "--output", output, "--json") == 0
    shown: list[dict[str, Any]] = [json.loads(x) for x in capsys.readouterr().out.splitlines()]
    recovered = [event for event in shown if event["event"] == "recovered"]
    report = read_recovery(output)
    assert recovered
    assert report is not None
    assert report.reasons == tuple(event["why"] for event in recovered)
    assert report.to_offset == recovered[-1]["to_offset"]
    assert reput("recover", store, "--output", output) == 0
    assert read_recovery(output) == report  # nothing to recover


def test_a_verification_is_recorded_if_asked_to(
    made: Made, capsys: pytest.CaptureFixture[str]
) -> None:
    store, output = made
    assert reput("verify", store, "--output", output) == 0
    assert read_verification(output) is None
    assert reput("verify", store, "--output", output, "--record") == 0
    report = read_verification(output)
    assert report is not None
    assert (report.equal, report.messages, report.first) == (True, 300, ())
    queue = output / "consumequeue" / "TopicB" / "0" / f"{0:020d}"
    data = bytearray(queue.read_bytes())
    data[19] ^= 1
    queue.write_bytes(data)
    assert reput("verify", store, "--output", output, "--record", "--json") == 1
    report = read_verification(output)
    assert report is not None
    assert (report.equal, report.differences) == (False, 1)
    assert "TopicB" in report.first[0]
    capsys.readouterr()


def test_the_result_for_a_brokers_own_files_cannot_be_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_store(tmp_path, 30)
    assert reput("verify", tmp_path, "--record") == 2
    assert "was not made by a dispatch" in capsys.readouterr().err


def test_a_damaged_report_is_named_and_harms_nothing(made: Made) -> None:
    store, output = made
    Disk().replace(output / VERIFIED, b"{}\n00000000\n")
    with pytest.raises(DamageError, match="verified"):
        read_verification(output)
    assert reput("verify", store, "--output", output) == 0
    dispatch_all(store, output, small_config())
