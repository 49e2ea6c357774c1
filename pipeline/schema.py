"""Writes the schema that the last run inferred to a file for review.

python -m pipeline.schema --to schema/mine/schema.pbtxt
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from pipeline.errors import UserError


def write_inferred(output: Path, to: Path, replace: bool) -> None:
    """Copies the newest schema that SchemaGen made below an output folder.

    Raises:
        UserError: there was no run yet, or ``to`` exists and must not be replaced.
    """
    # SchemaGen writes to <output>/artifacts/SchemaGen/schema/<execution>/schema.pbtxt, counting executions up.
    inferred = sorted(output.glob("artifacts/SchemaGen/schema/*/schema.pbtxt"), key=lambda path: int(path.parent.name))
    if not inferred:
        raise UserError(f"no inferred schema below {output}; run python local_runner.py first, or name its --output")
    if to.exists() and not replace:
        raise UserError(f"{to} exists and may hold a review; compare with diff {inferred[-1]} {to}, or pass --replace")
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(inferred[-1], to)
    print(f"Wrote {to}, inferred from the data of that run. Review it, then name it in the config: schema=...")


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m pipeline.schema", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--output", type=Path, default=Path("output/flights"), help="output folder of the run (%(default)s)"
    )
    parser.add_argument("--to", type=Path, required=True, help="file to write, such as schema/mine/schema.pbtxt")
    parser.add_argument("--replace", action="store_true", help="overwrite the file")
    arguments = parser.parse_args()
    try:
        write_inferred(arguments.output, arguments.to, arguments.replace)
    except UserError as error:
        print(f"pipeline.schema: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
