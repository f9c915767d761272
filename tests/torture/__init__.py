"""Crash tests: power loss, killed processes and failing system calls, at every possible point.

They write real files, on a disk that tracks what is not yet durable (``simulation.device``).
``cycles`` kills and resumes at random, ``faults`` fails each system call in turn, ``enumeration``
tries every state that a power loss can leave after one batch. ``python -m tests.torture`` runs
the long form of each and prints figures; the tests in this package are the short form.
"""
