"""An OUTPUT that is not a directory and cannot become one: every command refuses it alike."""

from pathlib import Path

import pytest

from reput.cli import run
from tests.support.stores.displaced import make, numbered

PATHS = {
    "file": "file is not a directory",
    "file/below": "file is not one",
    "dangling": "a symbolic link whose target does not exist: nowhere",
    "dangling/below": "dangling is not one: it is a symbolic link whose target does not exist",
    "loop": "Too many levels of symbolic links",
    "loop/below": "loop is not one: Too many levels of symbolic links",
}
COMMANDS = {
    "rebuild": [],
    "verify": [],
    "recover": [],
    "topics": [],
    "status": None,
    "get": ["--topic", "T", "--queue", "0", "--offset", "0"],
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", PATHS)
def test_an_output_that_is_not_a_directory_is_refused(
    tmp_path: Path, name: str, command: str, capfd: pytest.CaptureFixture[str]
) -> None:
    store, output = make(tmp_path / "store", numbered(0)), tmp_path / name
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")
    options = COMMANDS[command]
    given = [] if options is None else [store, *options]
    capfd.readouterr()
    assert run([command, *given, "--output", str(output)]) == 2
    err = capfd.readouterr().err
    assert f"OUTPUT {output} is not a directory" in err
    assert PATHS[name] in err
    assert not (tmp_path / "nowhere").exists()
