"""The state of an OUTPUT root as files show it: progress, ends of files, truncation, expiry."""
