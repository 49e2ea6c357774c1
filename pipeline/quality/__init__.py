"""Validation of data and evaluation of models: findings with a remedy, metrics, gates and the verdict."""
