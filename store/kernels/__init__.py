"""Kernels: leaf functions on arrays, compiled by numba; no I/O, no objects."""
