"""Crash proof: power is lost, processes are killed and calls fail at every place there is.

All runs on real files, on a disk that remembers what is not durable yet (``simulation.device``).
``cycles`` kills and resumes at random, ``faults`` fails each system call in turn, ``enumeration``
goes through every state that a power loss can leave behind one batch. ``python -m tests.torture``
runs all in their long form and prints figures; the tests in this package are the short form.
"""
