"""Kernels: leaf functions on arrays, compiled by numba. No I/O, no objects."""
