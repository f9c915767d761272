"""What all answers share: the budget of their memory, streams, messages as texts; no page."""
