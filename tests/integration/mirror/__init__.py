"""Mirrors to a Kafka server, and what tells apart what arrived there."""
