"""Make the page a person opens after a run: one HTML file that needs nothing else."""
