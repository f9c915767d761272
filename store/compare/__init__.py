"""The comparison of queues and index with those that the log yields; it writes nothing."""
