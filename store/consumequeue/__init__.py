"""Consume queues: names, files, the writer, and reads by queue offset."""
