"""Files and directories: the one place that writes them, and how the others are read."""
