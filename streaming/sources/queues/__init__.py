"""Offsets by queue: their form, where they are in the log, and which messages queues hold."""
