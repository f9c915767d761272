"""What a command runs: dispatch, rebuild, verify, mirror, and their feeds; not its options."""
