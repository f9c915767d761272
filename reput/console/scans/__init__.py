"""Pages whose answers require a scan of the log: pending messages, and what fills it."""
