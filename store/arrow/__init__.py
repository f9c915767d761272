"""Messages as Arrow columns."""
