"""One file a command, and the terminal."""

import importlib.util
import sys

if not importlib.util.find_spec("tfx"):
    sys.exit(
        f"{sys.executable} lacks the packages that the pipeline needs: `make setup` installs them, and "
        "`source .venv/bin/activate` makes `python` the one that has them"
    )
