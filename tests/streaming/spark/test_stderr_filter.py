"""The lines of Spark's standard error that reach the user."""

import pytest

from streaming.spark.stderr_filter import without_noise

PLANNER = """Traceback (most recent call last):
  File "x/pyspark/sql/streaming/python_streaming_source_runner.py", line 265, in main
    func_id = read_int(infile)
EOFError

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main
BrokenPipeError: [Errno 32] Broken pipe
"""
NO_SOCKET = """Traceback (most recent call last):
  File "x/pyspark/util.py", line 822, in local_connect_and_auth
FileNotFoundError: [Errno 2] No such file or directory

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "x/pyspark/sql/streaming/python_streaming_source_runner.py", line 313, in <module>
PySparkRuntimeError: [CANNOT_OPEN_SOCKET] Can not open socket
"""
WORKER = """Traceback (most recent call last):
  File "x/pyspark/daemon.py", line 95, in worker
    outfile.flush()
BrokenPipeError: [Errno 32] Broken pipe
"""
OTHER = """Traceback (most recent call last):
  File "x/pyspark/worker.py", line 1, in main

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "y.py", line 2, in f
ValueError: no
"""


@pytest.mark.parametrize(
    "noise", [PLANNER, NO_SOCKET, WORKER, "Setting default log level to WARN\n"]
)
@pytest.mark.parametrize("around", ["", "a line\n", OTHER, "  an indented one\n\n"])
def test_noise_is_dropped_and_everything_else_forwarded(noise: str, around: str) -> None:
    lines = (around + noise + around).encode().splitlines(keepends=True)
    assert b"".join(without_noise(lines)).decode() == around + around


def test_lines_are_forwarded_immediately() -> None:
    passed = without_noise(iter([b"first\n", b"second\n"]))
    assert next(passed) == b"first\n"
    assert b"".join(without_noise(OTHER.encode().splitlines(keepends=True))).decode() == OTHER
