"""A simulated disk, a broker's log on it, and what a root has to be at any time."""
