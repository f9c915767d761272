"""Metrics for Prometheus: what a store's files show, what a query has done, and the endpoint."""
