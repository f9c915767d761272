"""The sinks: they take stretches of the log, in log order."""
