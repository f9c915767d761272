"""A feed over Spark: a cluster scans the log, a sink in this process applies the stretches."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from store.commitlog.dispatch_request import DispatchRequests
from store.commitlog.scanner import Damage, Stretch
from store.config import StoreConfig
from streaming.queries.feed import BATCH_BYTES, Feed
from streaming.queries.log_query import LogQuery
from streaming.sinks.ordered_sink import BatchSink


def spark_feed(spark: SparkSession, store_root: Path, config: StoreConfig) -> Feed:
    """Return a feed whose scans run as Spark tasks, which read the log at the same path."""

    def feed(span: tuple[int, int], is_clean: bool, sink: BatchSink) -> None:
        with tempfile.TemporaryDirectory(prefix="reput-", ignore_cleanup_errors=True) as checkpoint:
            query = LogQuery(
                name=f"reput-{sink.name}",
                store_root=str(store_root.resolve()),
                config=config,
                begin=span[0],
                max_bytes=BATCH_BYTES,
                fail_on_data_loss=True,
                checkpoint=Path(checkpoint),
                trigger_interval=None,
                options={"until": str(span[1]), "closedCleanly": str(is_clean).lower()},
            ).start(spark, _QuerySink(sink))
            try:
                with suppress(StreamingQueryException):  # raised below as a StoreError
                    query.awaitTermination()
            finally:
                query.stop()
            error = query.failure()
            if error is not None:
                raise error

    return feed


class _QuerySink(BatchSink):
    """Passes the batches of one query to a sink that outlives the query."""

    name = "query"

    def __init__(self, sink: BatchSink) -> None:
        super().__init__(sink.applied_to())
        self._sink = sink
        self.counts = sink.counts

    def applied_to(self) -> int:
        """Return the offset up to which the sink has applied the log."""
        return self._sink.applied_to()

    def is_blocked(self) -> bool:
        """Return whether the sink accepts nothing more."""
        return self.error is not None or self._sink.is_blocked()

    def _apply_part(self, stretches: list[Stretch]) -> None:
        self._sink.apply_part(stretches)

    def _put(self, requests: list[DispatchRequests], lost: list[Damage]) -> None:
        raise NotImplementedError

    def _finish(self) -> None:
        self._sink.apply([])
        self.counts = self._sink.counts

    def _end(self) -> None:
        """Do nothing: the sink is closed by its owner."""
