"""Packs: how checkpoints store quantised tensors, read into isa's schemes; a file a packing."""
