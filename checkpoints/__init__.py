"""What survives a restart: the root's state files, the progress record, where to go on."""
