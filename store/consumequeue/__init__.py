"""Consume queues: names, files, the writer, reads by queue offset; not the messages themselves."""
