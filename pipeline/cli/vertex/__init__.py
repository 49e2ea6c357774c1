"""The commands of vertex_runner.py."""
