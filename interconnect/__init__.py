"""Wires between cards: which bytes cross which links, in which order. Knows ranks, and no clock."""
