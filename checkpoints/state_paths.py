"""The files and directories below ``OUTPUT/reput``, relative to OUTPUT.

======================  ======================================================================
``reput/progress``      the progress record (``store.output.progress``)
``reput/batch``         the undo record of the batch in flight (``checkpoints.batch_record``)
``reput/swap``          the record of the swap in progress (``checkpoints.swap``)
``reput/recovered``     what the last recovery did (``checkpoints.recovery.reports``)
``reput/verified``      what the last recorded verification found
``reput/spark/``        the Spark checkpoint, one directory for each epoch
``reput/bulk/new``      the new OUTPUT of a rebuild (``checkpoints.rebuild``)
``reput/bulk/boot``     the boot during which that OUTPUT was created
``reput/bulk/old``      the queues and index that it replaces, during the swap
======================  ======================================================================

Readers know the first and the third: ``store.output.progress`` defines them.
"""

from __future__ import annotations

from store.output.progress import PROGRESS

REPUT_DIR = PROGRESS.parent
BATCH = REPUT_DIR / "batch"
RECOVERED, VERIFIED = REPUT_DIR / "recovered", REPUT_DIR / "verified"
SPARK_DIR = REPUT_DIR / "spark"

BULK_DIR = REPUT_DIR / "bulk"
NEW_OUTPUT_DIR, OLD_OUTPUT_DIR = BULK_DIR / "new", BULK_DIR / "old"
BOOT = BULK_DIR / "boot"
