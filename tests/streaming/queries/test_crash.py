"""A dispatch killed between any two of its steps: the next start recovers by itself (I7)."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from store.output.progress import read_progress
from streaming.queries.dispatch_query import DispatchOptions, begin_dispatch, query_error
from tests.support.cases import first_cases
from tests.support.dispatching import assert_same_store, dispatch_all
from tests.support.stores.written import make_store

pytestmark = pytest.mark.spark

# Kills the process when a function is called, or has returned, for the nth time.
KILLED = """
import importlib, os, signal, sys

module, name, when, count = sys.argv.pop(), sys.argv.pop(), sys.argv.pop(), int(sys.argv.pop())
owner = importlib.import_module(module)
for part in name.split(".")[:-1]:
    owner = getattr(owner, part)
real, calls = getattr(owner, name.split(".")[-1]), []

def killing(*args, **kwargs):
    calls.append(None)
    if when == "before" and len(calls) == count:
        os.kill(os.getpid(), signal.SIGKILL)
    result = real(*args, **kwargs)
    if when == "after" and len(calls) == count:
        os.kill(os.getpid(), signal.SIGKILL)
    return result

setattr(owner, name.split(".")[-1], killing)
import streaming.sinks.ordered_sink as sinks
sinks.MESSAGES_PER_QUEUE_MIN = 0  # no part waits for the end of its batch
from reput.cli import main
main()
"""
# How the process is killed in its second batch, and whether a batch is to be cut off then.
STEPS = {
    "synced": ("2", "before", "write_progress", "checkpoints.commit", True),
    "progress written": ("2", "after", "write_progress", "checkpoints.commit", False),
    "batch on record": ("2", "after", "DispatchOutput.begin_batch", "checkpoints.output", True),
    "sinks applied": ("2", "before", "DispatchOutput.commit", "checkpoints.output", True),
    "batch returned": ("2", "after", "DispatchSink.apply", "streaming.sinks.dispatch_sink", False),
    "part applied": (
        "2",
        "after",
        "DispatchSink.apply_part",
        "streaming.sinks.dispatch_sink",
        True,
    ),
    "Spark committed": (
        "3",
        "before",
        "DispatchSink.apply_part",
        "streaming.sinks.dispatch_sink",
        False,
    ),
}


@pytest.mark.process
@pytest.mark.parametrize("step", first_cases(STEPS, 2))
def test_a_dispatch_killed_between_two_steps_recovers(
    spark: SparkSession, tmp_path: Path, step: str
) -> None:
    *kill, is_cut_off = STEPS[step]
    store, output = tmp_path / "store", tmp_path / "out"
    config = make_store(store, 1_000)
    arguments = ["dispatch", store, "--output", output, "--max-bytes-per-trigger", "40k"]
    done = subprocess.run(
        [sys.executable, "-c", KILLED, *arguments, *kill], capture_output=True, check=False
    )
    assert done.returncode == -9, done.stderr
    before = read_progress(output)
    assert before is not None
    assert before.batch == (1 if is_cut_off else 2)
    if step in ("synced", "Spark committed"):  # none of it is read, whatever the step
        shutil.rmtree(output / "reput" / "spark")
    running = begin_dispatch(spark, store, output, DispatchOptions(available_now=True))
    running.query.awaitTermination()
    running.close()
    assert query_error(running.query) is None
    assert [r.to_offset for r in running.output.recovered] == (
        [before.reput_from_offset] if is_cut_off else []
    )
    dispatch_all(store, tmp_path / "expected", config)
    assert_same_store(output, tmp_path / "expected")
