"""The CommitLog: records, the live end, scans, and a writer for tests and demos."""
