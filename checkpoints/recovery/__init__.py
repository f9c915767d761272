"""The recovery of a root after a crash: swap, adoption, rollback of a batch, following the log."""
