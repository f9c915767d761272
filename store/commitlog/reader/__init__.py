"""How a reader follows the log: the batches that it plans, not the scan of them."""
