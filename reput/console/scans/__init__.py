"""Pages whose answers take a scan of the log: pending messages and usage; not search and tail."""
