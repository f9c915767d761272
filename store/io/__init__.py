"""Files and directories: the only module that writes them, and the ways to read them; no format."""
