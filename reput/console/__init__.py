"""The web console and the metrics endpoint: HTTP, without Spark."""
