"""Spark's Python daemon with the kernels loaded: the workers, its forks, inherit them.

This also saves 20 ms per task.

For local masters only: on a cluster the daemon starts before files sent with ``--py-files`` can be
imported.
"""

from __future__ import annotations

import gc

from pyspark import daemon

from store.commitlog.scanner import load_kernels

if __name__ == "__main__":
    load_kernels()
    # A worker runs the garbage collector after every task: exempt the objects that exist already.
    gc.freeze()
    daemon.manager()
