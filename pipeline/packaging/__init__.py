"""Package the user's code as a wheel per step; fingerprints."""
