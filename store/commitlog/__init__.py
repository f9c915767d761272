"""The CommitLog: records, the live end, scans, a writer for tests and demos; not the kernels."""
