"""Pages whose answers take a scan of the log: pending messages, and what fills it."""
