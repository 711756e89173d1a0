"""The command line (built last)."""
