"""Consume queues: their files and names, the writer, and reads by queue offset."""
