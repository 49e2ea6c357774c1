"""Time and money of a run: prices of machines, estimates before it and the bill after it."""
