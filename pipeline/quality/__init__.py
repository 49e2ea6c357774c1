"""Findings about the data, each with a severity, a sentence and a remedy."""
