"""What the files of OUTPUT show: progress, file ends, expiry, truncation; not its recovery."""
