"""What the tails of a log take: their feeds, and the threads that match their conditions."""
