"""What a command runs: dispatch, rebuild, verify and mirror, and the feeds between."""
