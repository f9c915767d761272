"""Offsets by queue: their form, and where they are in the log; not the files of consume queues."""
