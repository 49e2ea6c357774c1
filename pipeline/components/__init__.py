"""Our own TFX components and executors, one file each."""
