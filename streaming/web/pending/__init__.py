"""Pending messages in the console."""
