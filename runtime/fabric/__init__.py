"""The fabric bench: collectives emulated alone on a cluster, the choice table made from that, and drawings."""
