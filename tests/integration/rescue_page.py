"""The commands of docs/rescue.md, run as an operator runs them: in a shell, on a broker's store."""

import os
import re
import signal
import subprocess
from pathlib import Path
from shlex import join, quote

from tests.integration.servers import remoting
from tests.integration.servers.processes import is_listening, wait_for
from tests.integration.servers.reput import is_alive
from tests.integration.servers.rocketmq import BROKER_NAME, RocketMq
from tests.support.commands import REPUT

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "rescue.md"
BLOCK_SECONDS = 120
_BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def sections() -> dict[str, list[str]]:
    """Map each heading of the page to its blocks of commands."""
    parts = re.split(r"^## (.+)$", PAGE.read_text("utf-8"), flags=re.MULTILINE)
    return {
        title: _BLOCK.findall(text) for title, text in zip(parts[1::2], parts[2::2], strict=True)
    }


class Rescue:
    """A stopped broker's store, and the variables that the page's commands use.

    ``reput`` and RocketMQ's ``mqbroker`` are scripts that run this checkout and the broker's jars.
    """

    def __init__(self, mq: RocketMq, directory: Path) -> None:
        self.mq = mq
        self.broker_log = Path(f"{mq.store}.broker.out")
        self.printed = ""
        self.ran: list[str] = []
        self._pid_file = directory / "broker.pid"
        home = directory / "rocketmq"
        (home / "bin").mkdir(parents=True)
        (home / "lib").symlink_to(mq.libraries)
        broker = " ".join(map(quote, mq.broker.command[:-2]))
        _script(
            home / "bin/mqbroker",
            f"echo $$ > {quote(str(self._pid_file))}\n"
            f'export ROCKETMQ_HOME={quote(str(mq.directory))}\nexec {broker} "$@"',
        )
        _script(home / "bin/reput", f'exec {join(REPUT)} "$@"')
        self._environment = {
            **os.environ,
            "PATH": f"{home / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "STORE": str(mq.store),
            "OUTPUT": str(directory / "output"),
            "CONF": str(mq.conf),
            "ROCKETMQ_HOME": str(home),
            "NAMESRV": mq.name_address,
        }

    def run(self, title: str, block: int | None = None, **variables: str) -> str:
        """Run the blocks of a section, or one of them; each must succeed. Return the output."""
        blocks = sections()[title]
        printed = ""
        for text in blocks if block is None else [blocks[block]]:
            done = subprocess.run(
                ["sh", "-eu", "-c", text],
                cwd=ROOT,
                env=self._environment | variables,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
                timeout=BLOCK_SECONDS,
            )
            printed += done.stdout + done.stderr
            assert done.returncode == 0, f"{title}:\n{text}\n{printed}"
        self.ran.append(title)
        return printed

    def start_broker(self) -> None:
        """Start the broker as the page says, and wait until clients find it."""
        self.run("Start the broker")
        self.wait_until_listening()
        topic = self.mq.topics[0]
        wait_for(
            lambda: remoting.is_routable(self.mq.name_address, topic, BROKER_NAME),
            f"routable: {topic}",
        )

    def wait_until_listening(self) -> None:
        """Wait until the broker that a block has started accepts connections."""
        port = int(self.mq.broker_address.rpartition(":")[2])
        wait_for(lambda: is_listening(port), f"listening; {self.broker_log}")

    def stop_broker(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Stop the broker that a block has started, if it runs."""
        if not self._pid_file.exists():
            return
        pid = int(self._pid_file.read_text())
        if is_alive(pid):
            os.kill(pid, number)
            wait_for(lambda: not is_alive(pid), "ended: the broker")
        self._pid_file.unlink()


def _script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n", "utf-8")
    path.chmod(0o755)
