"""The sinks: each applies the stretches of the log in log order; not the feeds."""
