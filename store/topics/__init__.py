"""What a store holds, by topic: queues, the lag of consumer groups; no messages."""
