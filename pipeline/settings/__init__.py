"""WHAT a pipeline does and WHERE: frozen dataclasses, checked when they are built."""
