"""A log to damage, and the model's dispatch of its records."""

from dataclasses import dataclass
from pathlib import Path

from checkpoints.output import DispatchOutput
from checkpoints.recovery.steps import Recovered
from store.config import StoreConfig
from store.output.progress import Progress, read_progress
from tests.logs.build import Message, build_log, write_log
from tests.model.dispatch import Built, Dispatcher, Record, dispatch, name_files
from tests.model.tree import model_tree
from tests.support.dispatching import (
    Content,
    HastyDisk,
    assert_same_content,
    built_tree,
    dispatch_all,
    to_model_config,
)

FILE_SIZE = 1024
CONFIG = StoreConfig(
    mapped_file_size_commit_log=FILE_SIZE,
    mapped_file_size_consume_queue=100,
    max_hash_slot_num=7,
    max_index_num=10,
    enabled_append_prop_crc=True,
)
MESSAGES = [
    Message(
        queue_offset=n,
        body=b"body %02d" % n,
        store_timestamp=1_700_000_000_000 + 700 * n,
        properties=[("KEYS", f"k{n}"), ("TAGS", f"Tag{n % 3}")],
    )
    for n in range(17)
]
FILES = build_log(MESSAGES, FILE_SIZE, prop_crc=True)
WHOLE = dispatch(FILES, to_model_config(CONFIG))
RECORDS = WHOLE.records
LAST_BASE = max(FILES)


@dataclass
class Store:
    """A damaged store and the output of its dispatch."""

    store_root: Path
    output: Path

    def write(self, files: dict[int, bytes], *, has_abort: bool = False) -> None:
        """Write the log."""
        write_log(files, self.store_root / "commitlog")
        if has_abort:
            (self.store_root / "abort").touch()

    def path(self, base: int) -> Path:
        """Return the path of a log file."""
        return self.store_root / "commitlog" / f"{base:020d}"

    def dispatch(self, *, fail_on_data_loss: bool = True) -> Progress:
        """Dispatch the current log."""
        return dispatch_all(
            self.store_root, self.output, CONFIG, fail_on_data_loss=fail_on_data_loss
        )

    def recovered(self) -> tuple[Recovered, ...]:
        """Reopen OUTPUT; return what its recovery did."""
        owned = DispatchOutput.open(self.output, self.store_root, CONFIG, disk=HastyDisk())
        owned.close(clean=True)
        return owned.recovered

    def assert_built(self, records: list[Record]) -> None:
        """Assert that the output is the model's dispatch of these records."""
        assert_same_content(built_tree(self.output), built_of(records))
        progress = read_progress(self.output)
        assert progress is not None
        assert len(records) == progress.messages


def built_of(records: list[Record], config: StoreConfig = CONFIG) -> dict[str, Content]:
    """Return the files that the model builds from some of a log's records."""
    broker = Dispatcher(to_model_config(config))
    for record in records:
        broker.dispatch(record)
    built = Built(
        name_files(broker.queues), {}, [f.content() for f in broker.index], records, 0, []
    )
    return model_tree(built)
