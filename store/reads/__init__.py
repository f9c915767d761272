"""Reads: messages by queue offset, key and time, long polling, and messages as columns."""
