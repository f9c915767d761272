"""Index files: the hash index of keys over the log, read and written."""
