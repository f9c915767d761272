"""A root's queues and index built anew from the whole log, by independent tasks, and swapped in.

``tasks`` is what runs on executors, ``state`` what is kept so that a killed rebuild goes on, and
``rebuild`` the order of it all. Which engine runs the tasks is the caller's choice.
"""
