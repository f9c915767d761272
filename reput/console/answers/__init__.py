"""What all answers share: the budget of their memory, streams, and messages as texts."""
