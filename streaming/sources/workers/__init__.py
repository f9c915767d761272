"""The sources inside Spark's Python workers; nothing of the driver."""
