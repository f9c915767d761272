"""The export of messages to Parquet or JSON Lines files; no Spark, no queues or index."""
