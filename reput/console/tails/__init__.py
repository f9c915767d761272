"""The tails of a log: their feeds, and the threads that match their conditions; not the search."""
