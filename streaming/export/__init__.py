"""Messages as Parquet or JSON lines."""
