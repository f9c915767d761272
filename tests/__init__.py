"""Tests: they mirror the packages; `model` and `logs` are shared by many of them."""
