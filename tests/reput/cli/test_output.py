"""Output to a terminal and to pipes of any encoding, help, and what a command imports."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from reput.cli import run
from reput.cli.commands import COMMANDS, help_line, load_command
from reput.cli.lines import seconds_text
from reput.cli.long_running import LineReporter, progress_line
from store.printable import size_text
from streaming.queries.query_metrics import DispatchProgress
from tests.logs.build import Message, build_log, write_log
from tests.support.terminal import STYLE, on_terminal, program_on_terminal

FILE_SIZE = 16 * 1024
TOPIC = "Grüße世"
TEXT = "Grüße 世界 \u202e\x9b \x1b[31m"
QUEUE = ["--topic", TOPIC, "--queue", "0"]


def make_store(store: Path) -> None:
    """Write a log of a few messages in several scripts."""
    messages = [
        Message(
            topic=TOPIC,
            queue_offset=n,
            body=TEXT.encode(),
            properties=[("KEYS", "schlüssel"), ("TAGS", "标签"), ("UNIQ_KEY", "ü")],
            store_timestamp=1_700_000_000_000,
        )
        for n in range(3)
    ]
    write_log(build_log(messages, FILE_SIZE), store / "commitlog")
    (store / "broker.conf").write_text(f"mappedFileSizeCommitLog={FILE_SIZE}\n")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store, and below it an OUTPUT, in a directory whose name is not UTF-8."""
    parent = os.fsencode(tmp_path_factory.mktemp("encodings"))
    path = Path(os.fsdecode(parent + b"/caf\xe9 \x1b[31m"))
    make_store(path)
    assert run(["rebuild", str(path), "--output", str(path / "out")]) == 0
    return path


_RUNS_ALL = """
import json, sys
from reput.cli import main
for arguments in json.loads(sys.argv[1]):
    sys.argv[1:] = arguments
    try:
        main()
    except SystemExit as e:
        print("exit", e.code, flush=True)
"""


def reads(store: Path) -> list[list[str]]:
    out = str(store / "out")
    log = next((store / "commitlog").iterdir())
    return [
        ["get", str(store), "--output", out, *QUEUE, "--offset", "0"],
        ["offset", str(store), "--output", out, *QUEUE, "--time", "0"],
        ["query", str(store), "--output", out, "--topic", TOPIC, "--key", "schlüssel"],
        ["message", str(store), "--output", out, "--commit-log-offset", "0"],
        ["topics", str(store), "--output", out],
        ["status", str(store), "--output", out],
        ["dump", str(log)],
        ["verify", str(store), "--output", out],
        ["recover", str(store), "--output", out],
    ]


OTHERS = [["--help"], ["get", "--help"], ["dispatch", "--help"], ["get", "Grüße\udce9", "--nö"]]


@pytest.mark.parametrize(
    "environment",
    [
        {"PYTHONIOENCODING": "latin-1"},
        {"PYTHONIOENCODING": "ascii:strict", "PYTHONUTF8": "0"},
        {"PYTHONIOENCODING": "utf-8:strict", "PYTHONUTF8": "1"},
        {"LC_ALL": "C", "PYTHONUTF8": "1"},
    ],
    ids=lambda e: " ".join(e.values()),
)
def test_no_encoding_of_the_output_fails_a_command(
    store: Path, environment: dict[str, str]
) -> None:
    plain = reads(store)
    as_json = [[*command, "--json"] for command in plain]
    missing = ["get", str(store / "nö"), *QUEUE, "--offset", "0"]
    arguments = json.dumps([*plain, missing, *OTHERS, *as_json])
    done = subprocess.run(
        [sys.executable, "-c", _RUNS_ALL, arguments],
        env=os.environ | environment,
        capture_output=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    codes = [line.split()[1].decode() for line in lines if line.startswith(b"exit ")]
    assert b"\x1b" not in done.stdout + done.stderr
    expected = ["0"] * len(plain) + ["2"] + ["0", "0", "0", "2"] + ["0"] * len(plain)
    assert codes == expected, done.stderr.decode(errors="replace")
    encoding = environment.get("PYTHONIOENCODING", "utf-8").partition(":")[0]
    found = [json.loads(line.decode(encoding)) for line in lines if line.startswith(b"{")]
    assert [m["body"] for m in found if m.get("commit_log_offset") == 0] == [TEXT] * 4
    assert {str(store / "out")} == {row["output"] for row in found if "output" in row}


def test_a_topic_that_file_names_cannot_encode_is_refused(store: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _RUNS_ALL, json.dumps([*reads(store), *OTHERS])],
        env=os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    codes = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("exit ")]
    assert (codes[0], set(codes)) == ("6", {"0", "2", "6"})
    assert "reput: a file name cannot be encoded as ascii: '\\xfc\\xdf' (set PYTHONUTF8=1)" in (
        done.stderr.splitlines()
    )


def test_control_characters_of_a_store_are_escaped_on_a_terminal(tmp_path: Path) -> None:
    store = tmp_path / "\x1b[31m\x9b\u202e\x07"
    make_store(store)
    out = str(store / "out")
    (tmp_path / "empty").mkdir()
    commands = [
        ["rebuild", str(store), "--output", out],
        *reads(store),
        *([*command, "--json"] for command in reads(store)),
        ["get", str(store / "none"), *QUEUE, "--offset", "0"],
        ["get", str(store), "--\x1b[2J", "x"],
        ["get", str(store), "--output", out, "--topic", "\x1b[2J", "--queue", "0", "--offset", "0"],
        ["\x1b[2J\u202e"],
    ]
    for command, shown in zip(commands, on_terminal(commands, 80), strict=True):
        assert shown, command
        # Except the lines that the progress bar clears when it ends.
        lines = [line for line in shown.splitlines() if not line.endswith("\x1b[2K")]
        bad = [c for line in lines for c in line if not c.isprintable()]
        assert not bad or command[0] in {"rebuild", "verify", "recover"}, (command, shown)
        assert not {"\x9b", "\u202e", "\x07"} & set(shown), command


def test_log_lines_and_live_lines_are_escaped(capfd: pytest.CaptureFixture[str]) -> None:
    reporter = LineReporter(is_live=False)
    reporter.say("lost", "", path="a\x1b[31m b", reason="\u202e")
    assert r'path="a\u001b[31m b" reason="\u202e"' in capfd.readouterr().err
    code = """
import logging, sys
from reput.cli import main
sys.argv[1:] = ["--version"]
try:
    main()
except SystemExit:
    logging.getLogger("x").warning("from %s", "\\x1b[31m\\u202e")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "reput: from \\x1b[31m\\u202e\n"


# --- Help, completion, imports -------------------------------------------------------------------


def test_the_line_of_a_command_in_the_help_is_the_first_of_its_docstring() -> None:
    for name in COMMANDS:
        line = help_line(name)
        assert (load_command(name).help or "").split("\n\n")[0] == line
        assert len(line) <= 66  # one line of 80 columns


def test_help_lists_all_commands_and_uses_the_width(tmp_path: Path) -> None:
    narrow, wide = (
        on_terminal([["--help"], ["verify", "--help"]], columns) for columns in (80, 160)
    )
    for name in COMMANDS:
        assert f"\n  {name} " in narrow[0]
    for shown, columns in ((narrow, 80), (wide, 160)):
        longest = max(len(line) for text in shown for line in text.splitlines())
        assert columns - 15 < longest <= columns
    assert wide[1].count("\n") < narrow[1].count("\n")


def imported(commands: Iterable[Iterable[str]], among: Iterable[str]) -> set[str]:
    """Run command lines in one process; return which of these modules it imported."""
    code = f"""
import sys
from reput.cli import run
for arguments in {[*map(list, commands)]!r}:
    assert run(arguments) == 0
print(*({set(among)!r} & set(sys.modules)), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    return set(done.stderr.decode(errors="replace").splitlines()[-1].split())


@pytest.mark.parametrize("argument", ["--help", "--version"])
def test_help_and_version_import_next_to_nothing(argument: str) -> None:
    heavy = {"numpy", "numba", "pyarrow", "pyspark", "kafka", "rich", "rich.table", "store.config"}
    assert imported([[argument]], heavy) == set()


HEAVY = {"numba", "pyarrow", "pyspark", "kafka", "confluent_kafka"}
READS = {"get", "offset", "query", "message", "topics", "status", "dump"}


def test_reads_import_no_kernels_arrow_spark_or_kafka(store: Path) -> None:
    commands = [command for command in reads(store) if command[0] in READS]
    assert imported(commands, HEAVY) == set()
    as_json = [[*command, "--json"] for command in commands]
    assert imported(as_json, {*HEAVY, "rich"}) == set()


@pytest.mark.parametrize("command", ["recover", "verify"])
def test_recovery_and_comparison_import_kernels_alone(store: Path, command: str) -> None:
    commands = [line for line in reads(store) if line[0] == command]
    assert imported(commands, HEAVY) == {"numba"}


def test_commands_that_start_no_jvm_import_no_spark(store: Path, tmp_path: Path) -> None:
    commands = [
        ["rebuild", str(store), "--output", str(tmp_path / "out")],
        ["search", str(store), "--topic", TOPIC],
        ["usage", str(store)],
        ["export", str(store), "--to", str(tmp_path / "to")],
    ]
    assert imported(commands, {"pyspark", "py4j", "kafka"}) == set()


def test_help_of_a_command_imports_no_kernels_arrow_spark_or_kafka() -> None:
    assert imported([[name, "--help"] for name in COMMANDS], HEAVY) == set()


def complete(shell: str, words: str) -> str:
    """Return the completions that the program gives a shell."""
    environment = {
        "_REPUT_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
        "_TYPER_COMPLETE_ARGS": words,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    done = subprocess.run(
        [sys.executable, "-m", "reput"],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_commands_options_and_values(shell: str) -> None:
    assert "verify" in complete(shell, "reput ver")
    assert "--topic" in complete(shell, "reput get --to")
    assert "commitlog" in complete(shell, "reput dump --kind com")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_installed_for_the_shell_that_asks(shell: str, tmp_path: Path) -> None:
    program = tmp_path / shell  # the shell is detected by its process name
    program.write_bytes(Path("/bin/bash").read_bytes())
    program.chmod(0o755)
    command = f"'{sys.executable}' -m reput"
    for option in ("--show-completion", "--install-completion"):
        done = subprocess.run(
            [program, "-c", f"{command} {option}; exit $?"],
            env=os.environ | {"HOME": str(tmp_path), "SHELL": str(program)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert f"complete_{shell}" in done.stdout or f"{shell} completion installed" in done.stdout
    scripts = [path for path in tmp_path.rglob("*reput*") if path.is_file()]
    assert [f"complete_{shell}" in path.read_text() for path in scripts] == [True]


# --- Progress ------------------------------------------------------------------------------------


def test_progress_fits_80_columns_with_the_time_left() -> None:
    backlog = DispatchProgress(10**9, 12 * 10**9, 5, 123.4e6, 45678.0, 11 * 10**9, 2_804_244)
    assert progress_line(backlog, 0) == (
        "8%  123 MB/s  45,678 messages/s  behind 11.0 GB, 46m 44s  1m 29s left"
    )
    done = DispatchProgress(10**9, 10**9, 5, 0.0, 0.0, 0, 0)
    assert progress_line(done, 0) == ("offset 1,000,000,000  0 bytes/s  0 messages/s  up to date")
    most = DispatchProgress(10**15, 2 * 10**15, 5, 9999e6, 9_999_999.0, 10**15, 364 * 86_400_000)
    assert len(progress_line(most, 10**15 - 1)) <= 80


def test_sizes_and_durations_are_short() -> None:
    sizes = [0, 999, 1000, 123_456, 12 * 10**9, 10**15]
    assert [size_text(size) for size in sizes] == [
        "0 bytes", "999 bytes", "1.0 kB", "123 kB", "12.0 GB", "1,000 TB",
    ]  # fmt: skip
    spans = [0.2, 59.4, 59.6, 2804, 100_000]
    assert [seconds_text(span) for span in spans] == ["0s", "59s", "1m 00s", "46m 44s", "1d 03h"]


_BARS = """
from reput.cli.recover import recovery_progress
from reput.cli.show import progress_bar
with progress_bar("rebuilding", as_json=False) as report:
    for done in range(0, 500_000_000_001, 100_000_000_000):
        report(done, 999_900_000_000)
with recovery_progress(as_json=False) as report:
    report("cutting \\x1b[31mqueues off; and so on", 123_456, 999_999)
"""


def test_bars_show_percentage_and_time_left_in_80_columns() -> None:
    text = STYLE.sub("", program_on_terminal(_BARS, 80)).replace("\x1b[2K", "\n")
    drawn = [line.strip() for line in text.splitlines() if "%" in line]
    assert max(map(len, drawn)) <= 80
    rebuilding, cutting = drawn[0], drawn[-1]
    assert rebuilding.startswith("rebuilding ")
    assert " 50% 500.0/999.9 GB " in rebuilding
    assert rebuilding.endswith("s left")
    assert cutting.startswith(r"cutting \x1b[31mqueues off ")
    assert " 12% 123456/999999" in cutting
