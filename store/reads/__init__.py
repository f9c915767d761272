"""Reads: by queue offset, key and time, search, long polling, columns; not the file formats."""
