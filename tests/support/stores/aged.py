"""A log of several topics, and the rest of its OUTPUT after the log's beginning has expired."""

import shutil
import struct
from pathlib import Path

from store.config import StoreConfig
from tests.logs.build import Message
from tests.support.dispatching import dispatch_all
from tests.support.verify_stores import write_store

COUNT = 90
EXT_ADDRESS_BASE, EXT_ADDRESS_MAX = -(2**63), -2147483649


def sent(count: int = COUNT) -> list[Message]:
    """Make messages of one queue, some of another or to an LMQ, and seven of an old topic."""
    offsets: dict[str, int] = {}
    messages = []
    for n in range(count):
        topic = "Old" if n in range(0, 14, 2) else "Rare" if n % 9 == 4 else "T"
        properties = [("TAGS", f"t{n % 3}"), ("KEYS", f"k{n} common")]
        if n % 4 == 1:
            properties += [
                ("INNER_MULTI_DISPATCH", "%LMQ%a"),
                ("INNER_MULTI_QUEUE_OFFSET", str(offsets.setdefault("%LMQ%a", 0))),
            ]
            offsets["%LMQ%a"] += 1
        messages.append(
            Message(
                topic=topic,
                queue_offset=offsets.setdefault(topic, 0),
                body=b"0123456789" * 10,
                store_timestamp=1_700_000_000_000 + n * 1500,
                properties=properties,
            )
        )
        offsets[topic] += 1
    return messages


def log_files(store: Path) -> list[Path]:
    return sorted((store / "commitlog").iterdir())


def remove_expired(output: Path, config: StoreConfig, min_offset: int) -> None:
    """Delete files by the documented rules (format notes §5.7, §6, §12)."""
    for directory in sorted({p.parent for p in (output / "consumequeue").glob("*/*/*")}):
        files = sorted(directory.iterdir())
        while len(files) > 1:
            (last,) = struct.unpack(">q", files[0].read_bytes()[-20:-12])
            if last >= min_offset:
                break
            files.pop(0).unlink()
        units = struct.iter_unpack(">qiq", files[0].read_bytes())
        live = [tags for offset, size, tags in units if size and offset >= min_offset]
        ext = output / "consumequeue_ext" / directory.relative_to(output / "consumequeue")
        if live and live[0] <= EXT_ADDRESS_MAX and ext.is_dir():
            for path in ext.iterdir():
                end = int(path.name) + config.mapped_file_size_consume_queue_ext
                if end < live[0] - EXT_ADDRESS_BASE:
                    path.unlink()
    index = sorted((output / "index").iterdir())
    for path in index[:-1]:
        if struct.unpack(">q", path.read_bytes()[24:32])[0] >= min_offset:
            break
        path.unlink()


def expected_root(parent: Path, config: StoreConfig, min_offset: int) -> Path:
    """Dispatch the whole log into an OUTPUT, then delete what has expired."""
    store, output = write_store(parent / "whole", sent()), parent / "expected"
    shutil.rmtree(output, ignore_errors=True)
    dispatch_all(store, output, config)
    remove_expired(output, config, min_offset)
    return output
