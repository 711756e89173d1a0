"""The compiled calendar: the same activities as the SimPy engine's, to the picosecond, in one Numba loop."""
