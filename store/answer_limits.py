"""The settings of a broker that change its answers, not its files."""

from __future__ import annotations

from dataclasses import dataclass

from store.broker_properties import BrokerProperties


@dataclass(frozen=True, slots=True)
class AnswerLimits:
    """The settings that change a broker's answers to reads by queue offset, not its files.

    Java parity: ``DefaultMessageStore.nextOffsetCorrection``, ``isTheBatchFull``.
    """

    corrects_offset: bool = True  # a slave does not, unless offsetCheckInSlave is set
    max_transfer_count: int = 32
    max_transfer_bytes: int = 256 * 1024
    max_filter_bytes: int = 16_000  # of units that a read with a filter passes over
    compacts_topics: bool = True  # cleanup.policy=COMPACTION is read from a compacted store (5.1.0)


def answer_limits(read: BrokerProperties, version: tuple[int, int, int]) -> AnswerLimits:
    """Build the settings from broker properties. Raises ConfigError."""
    role = read.text("brokerRole", "ASYNC_MASTER")
    default = AnswerLimits()
    max_filter_bytes = default.max_filter_bytes
    if version >= (5, 3, 0):
        max_filter_bytes = read.positive("maxFilterMessageSize", max_filter_bytes)
    return AnswerLimits(
        corrects_offset=role != "SLAVE" or read.flag("offsetCheckInSlave"),
        max_transfer_count=read.positive(
            "maxTransferCountOnMessageInMemory", default.max_transfer_count
        ),
        max_transfer_bytes=read.positive(
            "maxTransferBytesOnMessageInMemory", default.max_transfer_bytes
        ),
        max_filter_bytes=max_filter_bytes,
        compacts_topics=read.flag("enableCompaction", default=True),
    )
