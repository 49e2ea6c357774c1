"""One file a command, and the terminal."""
