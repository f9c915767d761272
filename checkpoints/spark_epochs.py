"""The Spark checkpoints of OUTPUT: one directory below ``reput/spark`` per epoch (promise I7)."""

from __future__ import annotations

import re
from pathlib import Path

from checkpoints.output_entries import EntryKind, list_entries
from checkpoints.state_paths import SPARK_DIR
from store.io.disk import Disk

_EPOCH_NAME = re.compile("epoch-([0-9]{1,18})")
_SPARK_CHECKPOINT_NAMES = frozenset({"metadata", "offsets", "commits", "sources", "state", "spool"})


def create_epoch(output: Path, disk: Disk) -> Path:
    """Create the directory of a new epoch; delete the old ones, and links with such names.

    Entries with other names, such as an NFS client's ``.nfs…``, are left untouched, as is a
    directory that holds anything but a Spark checkpoint. Raises StoreIOError.
    """
    epochs = output / SPARK_DIR
    found = [(_EPOCH_NAME.fullmatch(name), kind) for name, kind in list_entries(epochs).items()]
    kinds = (EntryKind.DIRECTORY, EntryKind.LINK)
    old = {match: kind for match, kind in found if match is not None and kind in kinds}
    epoch = epochs / f"epoch-{max((int(match[1]) for match in old), default=0) + 1:06d}"
    disk.make_directory(epoch)
    for match, kind in old.items():
        names = list_entries(epochs / match[0]) if kind is EntryKind.DIRECTORY else ()
        if all(name in _SPARK_CHECKPOINT_NAMES or name.startswith(".") for name in names):
            disk.remove_tree(epochs / match[0])
    return epoch
