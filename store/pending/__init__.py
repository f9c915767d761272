"""Pending messages: those that a broker holds back, and what became of each; not the delivery."""
