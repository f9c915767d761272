"""Messages with given bodies, scanned."""

import numpy as np

from store.commitlog.dispatch_request import DispatchRequests
from store.commitlog.scanner import Scanner
from store.config import StoreConfig
from tests.logs.build import Message, build_log

FILE_SIZE = 8 << 20
CONFIG = StoreConfig(mapped_file_size_commit_log=FILE_SIZE)
COLUMNS = ("commit_log_offset", "body", "queue_offset", "properties")


def scan(bodies: list[tuple[bytes, int]]) -> tuple[DispatchRequests, np.ndarray]:
    messages = [Message(queue_offset=n, body=b, sys_flag=f) for n, (b, f) in enumerate(bodies)]
    (content,) = build_log(messages, FILE_SIZE).values()
    view = np.frombuffer(content, np.uint8)
    requests = [r for r, _ in Scanner(CONFIG, FILE_SIZE).chunks(view, 0, 0, len(view))]
    assert len(requests[0]) == len(bodies)
    return requests[0], view
