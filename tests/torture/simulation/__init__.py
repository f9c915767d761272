"""A simulated disk, a broker's log on it, and the expected state of a root at any time."""
