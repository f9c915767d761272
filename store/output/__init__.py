"""The state of an OUTPUT root as its files show it: progress, file ends, truncation, expiry."""
