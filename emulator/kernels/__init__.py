"""Numba twins of the instructions' NumPy meanings, same names."""
