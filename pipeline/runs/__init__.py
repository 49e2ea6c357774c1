"""Run the graph on this machine, and keep, list, compare and clean up runs."""
