"""The help and the version, as a user asks for them."""

from importlib.metadata import version

import pytest

from reput.cli import run


def test_version_and_exit_codes_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"reput {version('rocketmq-reput')}\n"
    assert run(["--help"]) == 0
    assert "3 damaged" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["get", "offset", "query", "message", "topics"])
def test_help_names_the_options_of_each_command(
    command: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run([command, "--help"]) == 0
    out = capfd.readouterr().out
    for name in ("STORE", "--output", "--broker-conf", "--broker-version", "--json"):
        assert name in out
