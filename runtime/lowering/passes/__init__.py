"""Passes over the blocks of a program before anything is placed: what a card lacks is composed, what fits is fused."""
