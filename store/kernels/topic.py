"""What a topic's name determines, as kernels: its kind, and whether it can name a directory.

The plain twin of ``can_name_directory`` is in ``store.consumequeue.names``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from store.kernels.java import decode_one
from store.kernels.jit import kernel
from store.layout import TOPIC_BYTES_MAX

# The topics that multi-dispatch excludes (Rules.multi_dispatch; format notes §5.4).
MULTI_OFF, MULTI_ALL, MULTI_WITHOUT_RETRY, MULTI_WITHOUT_TIMER, MULTI_WITHOUT_SYSTEM = range(5)

# The bits of topic_kind.
IS_SCHEDULE, IS_EXCLUDED, IS_UNUSABLE = 1, 2, 4


def name_bytes(text: str) -> NDArray[np.uint8]:
    """Return a name as bytes for a kernel to compare."""
    return np.frombuffer(text.encode(), np.uint8)


LMQ_PREFIX = name_bytes("%LMQ%")
_SCHEDULE_TOPIC = name_bytes("SCHEDULE_TOPIC_XXXX")
_RETRY_PREFIX = name_bytes("%RETRY%")
_SYSTEM_PREFIX = name_bytes("rmq_sys_")
_TIMER_TOPIC = name_bytes("rmq_sys_wheel_timer")
_SLASH, _DOT = ord("/"), ord(".")


@kernel
def starts_with(buf: NDArray[np.uint8], at: int, end: int, prefix: NDArray[np.uint8]) -> bool:
    """Return whether ``buf[at:end]`` starts with a prefix."""
    if end - at < len(prefix):
        return False
    for i in range(len(prefix)):
        if buf[at + i] != prefix[i]:
            return False
    return True


@kernel
def topic_kind(buf: NDArray[np.uint8], at: int, end: int, multi_dispatch: int) -> int:
    """Return the kind bits of the topic ``buf[at:end]``."""
    size = end - at
    is_schedule = size == len(_SCHEDULE_TOPIC) and starts_with(buf, at, end, _SCHEDULE_TOPIC)
    is_excluded = False
    if multi_dispatch >= MULTI_WITHOUT_RETRY:
        is_excluded = starts_with(buf, at, end, _RETRY_PREFIX)
    if multi_dispatch >= MULTI_WITHOUT_TIMER:
        is_excluded = is_excluded or is_schedule
    if multi_dispatch == MULTI_WITHOUT_TIMER:
        is_timer = size == len(_TIMER_TOPIC) and starts_with(buf, at, end, _TIMER_TOPIC)
        is_excluded = is_excluded or is_timer
    elif multi_dispatch == MULTI_WITHOUT_SYSTEM:
        is_excluded = is_excluded or starts_with(buf, at, end, _SYSTEM_PREFIX)
    kind = 0 if can_name_directory(buf, at, end) else IS_UNUSABLE
    return kind | (IS_SCHEDULE if is_schedule else 0) | (IS_EXCLUDED if is_excluded else 0)


@kernel
def can_name_directory(buf: NDArray[np.uint8], begin: int, end: int) -> bool:
    """Return whether the decoded topic can name the directory of its queues."""
    at, size = begin, 0
    part, dots = begin, 0  # the start of the path component, and how many dots it has
    while at < end:
        byte = buf[at]
        if byte == 0:
            return False
        if byte == _SLASH:
            if at - part == dots <= 2:
                return False
            part, dots = at + 1, 0
        elif byte == _DOT:
            dots += 1
        if byte < 0x80:
            size += 1
            at += 1
            continue
        point, at = decode_one(buf, at, end)
        size += 2 if point < 0x800 else 3 if point < 0x10000 else 4
    return size <= TOPIC_BYTES_MAX and not (end - part == dots <= 2)
