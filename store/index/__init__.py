"""Index files, the hash index of the log by key: reader and writer."""
