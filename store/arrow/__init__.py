"""Messages as Arrow columns: schema, buffers, batches; not which messages are read."""
