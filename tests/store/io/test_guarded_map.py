"""Reads of bytes that vanish from a map, and every other SIGBUS, in processes of their own."""

import os
import platform
import signal
import subprocess
import sys
from pathlib import Path

import llvmlite.binding as llvm
import pytest

from store.errors import DamageError
from store.io.bus_handler import HANDLERS
from store.io.mapped_file import MappedFile

BEFORE = """
import faulthandler, mmap, os, signal, sys, threading
from pathlib import Path
from store.errors import VanishedError
from store.io.guarded_map import fault_count
from store.io.mapped_file import MappedFile, intact, map_file

path = Path(sys.argv[1])
path.write_bytes(b"x" * 100_000)
file = MappedFile(path, 0, 100_000)
opened = path.open("rb")
other = mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ)

def read(at):
    with intact():
        return file.map()[at : at + 1]

def vanished(at):
    try:
        read(at)
    except VanishedError as e:
        return e.offset
    return None

assert read(50_000) == b"x"
"""


def run(code: str, path: Path) -> int:
    command = [sys.executable, "-c", BEFORE + code, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode > 0:
        raise AssertionError(done.stderr)
    return done.returncode


SURVIVED = {
    "once, then from a new map": """
os.truncate(path, 0)
assert vanished(50_000) == 50_000
path.write_bytes(b"y" * 100_000)
assert read(50_000) == b"y"
assert fault_count() == 1
""",
    "beyond the new end": """
os.truncate(path, 60_000)
assert read(10) == b"x"
assert vanished(99_999) == 99_999
assert read(10) == b"x"
""",
    "by a kernel call that needs no handler": """
os.truncate(path, 0)
try:
    os.write(os.open("/dev/full", os.O_WRONLY), file.map())
except OSError:
    pass
""",
    "in threads": """
os.truncate(path, 0)
found = []
threads = [threading.Thread(target=lambda: found.append(vanished(5))) for _ in range(8)]
[t.start() for t in threads], [t.join() for t in threads]
assert 5 in found, found
""",
    "in a forked child": """
child = os.fork()
os.truncate(path, 0)
if child == 0:
    os._exit(0 if vanished(5) == 5 else 1)
assert os.waitpid(child, 0)[1] == 0
assert fault_count() == 0
""",
    "in a child forked while threads map": """
is_over = threading.Event()

def map_on():
    while not is_over.is_set():
        map_file(path)

threads = [threading.Thread(target=map_on) for _ in range(2)]
for thread in threads:
    thread.start()
for _ in range(40):
    child = os.fork()
    if child == 0:
        signal.alarm(10)  # a child that waits for a lock is killed
        map_file(path)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
is_over.set()
for thread in threads:
    thread.join()
""",
    "after another map has the addresses": """
first = map_file(path)
del first
maps = [map_file(path) for _ in range(3)]
os.truncate(path, 0)
for view in maps:
    try:
        with intact():
            view.sum()
    except VanishedError:
        continue
    raise AssertionError
""",
    "after another handler was installed": """
faulthandler.enable()
os.truncate(path, 0)
file.drop()
path.write_bytes(b"x" * 100_000)
assert read(0) == b"x"
os.truncate(path, 0)
assert vanished(5) == 5
""",
    "of maps whose end is no page's": """
path.write_bytes(b"x" * 5000)
view = map_file(path)
os.truncate(path, 0)
try:
    with intact():
        assert view[4999] == 0
except VanishedError as e:
    assert e.offset == 4999
else:
    raise AssertionError
""",
}
OTHERS = {
    "of another map": "os.truncate(path, 0); other[0:1]",
    "sent": "os.kill(os.getpid(), signal.SIGBUS)",
    "with a handler installed since": "faulthandler.enable(); file.drop(); read(0)\n"
    "os.truncate(path, 0); other[0:1]",
    "sent, with a handler installed since": "faulthandler.enable(); file.drop(); read(0)\n"
    "os.kill(os.getpid(), signal.SIGBUS)",
}


@pytest.mark.parametrize("name", SURVIVED)
def test_a_process_survives_the_read_of_vanished_bytes(name: str, tmp_path: Path) -> None:
    assert run(SURVIVED[name], tmp_path / "file") == 0


@pytest.mark.parametrize("name", OTHERS)
def test_any_other_bus_error_ends_the_process_as_before(name: str, tmp_path: Path) -> None:
    assert run(OTHERS[name], tmp_path / "file") == -signal.SIGBUS


def test_a_python_handler_still_gets_signals_that_are_sent(tmp_path: Path) -> None:
    code = """
got = []
signal.signal(signal.SIGBUS, lambda *_: got.append(1))
file.drop()
read(0)
os.kill(os.getpid(), signal.SIGBUS)
os.kill(os.getpid(), signal.SIGBUS)
assert got == [1, 1]
"""
    assert run(code, tmp_path / "file") == 0


def test_the_handler_is_what_its_source_assembles_to() -> None:
    machine = platform.machine()
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()
    triple = f"{machine}-unknown-linux-gnu"
    lines = [line.partition("#" if machine == "x86_64" else "//")[0] for line in
             HANDLERS[machine].source.splitlines()]  # fmt: skip
    assembly = "".join(f'module asm "{line.rstrip()}"\n' for line in lines)
    module = llvm.parse_assembly(f'target triple = "{triple}"\n{assembly}')
    made = llvm.Target.from_triple(triple).create_target_machine().emit_object(module)
    code = {s.name(): s.data() for s in llvm.ObjectFileRef.from_data(made).sections()}
    assert code[b".text"] == HANDLERS[machine].code


def test_a_map_that_was_made_while_its_file_was_short_is_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 10)
    file = MappedFile(path, 0, 100)
    assert (len(file.map()), len(file.view())) == (10, 10)
    with pytest.raises(DamageError, match="10 bytes, but had 100"):
        file.check_length()
    path.write_bytes(b"x" * 100)
    file.check_length()
    assert (len(file.map()), len(file.view())) == (100, 100)
    os.truncate(path, 10)
    with pytest.raises(DamageError, match="10 bytes, but had 100"):
        file.check_length()
