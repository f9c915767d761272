"""The export of messages to Parquet or JSON Lines files."""
