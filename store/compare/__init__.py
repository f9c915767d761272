"""The comparison of a root's files with those that its log yields."""
