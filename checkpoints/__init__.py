"""The durable state of an OUTPUT root: its state files, recovery, expiry and rebuild."""
