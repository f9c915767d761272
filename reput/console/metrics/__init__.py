"""Metrics for Prometheus: of a store's files, of a query, and the endpoint; not the alert rules."""
