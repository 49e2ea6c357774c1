"""Metrics, slices, intervals and gates → the verdict on a model."""
