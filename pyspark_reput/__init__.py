"""The data source ``rocketmq-commitlog``, which Spark finds by this package's name.

Spark imports each top-level package whose name begins with ``pyspark_``, in a Python worker of the
driver, and registers its ``DefaultSource``. Sessions whose Python has this package need no
``spark.dataSource.register``.
"""

from streaming.sources.message_source import CommitLogDataSource as DefaultSource

__all__ = ["DefaultSource"]
