"""Index files, the hash index of the log by key: reader and writer; not the check of a key."""
