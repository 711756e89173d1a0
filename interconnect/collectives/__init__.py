"""Collective algorithms, one a file: steps of transfers and reductions."""
