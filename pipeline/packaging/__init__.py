"""The user's code → a wheel per step; fingerprints."""
