"""From a model and a cluster to tokens, a timeline and a report."""
