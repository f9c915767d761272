"""A simulated disk, a broker's log on it, and the expected state of an OUTPUT at any time."""
