"""One card, alive in simulated time: spec, units, kernels, HBM, calendar."""
