"""Which topic names can be directories."""

from __future__ import annotations

from pathlib import Path

from store.errors import DamageError


def check_topic(topic: str, directory: Path, offset: int) -> None:
    """Raise DamageError if the topic cannot name a directory below ``directory``.

    A broker refuses such names when messages are sent; here they can come from a damaged or
    hostile log, and must not lead out of the root.
    """
    if topic in ("", ".", "..") or "/" in topic or "\0" in topic:
        raise DamageError(directory, offset, f"topic {topic!r} cannot name a directory")
    if len(topic.encode("utf-8", "replace")) > 255:
        raise DamageError(directory, offset, f"topic {topic[:40]!r}… is longer than a file name")
