"""The CommitLog: records, where the log ends, scans of it, and a writer for tests and demos."""
