"""Bulk: queues and index of a whole log, built by independent parts (design: docs/design.md).

``log_parts`` cuts the log and scans a part, ``queue_parts`` lays its units in place and joins what
the parts say of each queue, ``key_parts`` keeps its index keys and numbers them all,
``index_build`` makes an index file of them. Which process does which part does not matter: no byte
is written by two parts in two ways.
"""
