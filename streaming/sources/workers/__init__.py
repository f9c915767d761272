"""The sources inside Spark's Python workers."""
