"""Activities that share resources in integer picoseconds: the solver and the SimPy engine."""
