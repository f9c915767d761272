"""Reads: by queue offset, key and time, search, long polling, and messages as columns."""
