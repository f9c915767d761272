"""The Spark session, its workers and its errors; nothing about the log."""
