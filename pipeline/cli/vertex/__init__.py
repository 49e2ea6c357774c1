"""Commands of vertex_runner.py."""
