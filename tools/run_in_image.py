"""Run a command in the unpacked files of an image, as in a container of it: its user, its variables, its folders.

    python tools/run_in_image.py BUNDLE COMMAND ARGUMENT...

BUNDLE/rootfs has the files and BUNDLE/config.json the rest, with the keys of the OCI's runtime-spec: process.user.uid,
process.env, process.cwd and mounts. The files are read-only. This process' own variables are added: they are those that
the service sets. Needs root, and util-linux.
"""

import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

PROGRAMS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Of this process itself, no variable of a service: Python sets it where the locale is C (PEP 538).
NOT_PASSED_ON = ("LC_CTYPE",)


def main() -> int:
    """Become the command; the process group is that of this process, so that both end together."""
    bundle, command = Path(sys.argv[1]).absolute(), sys.argv[2:]
    config = json.loads((bundle / "config.json").read_text(encoding="utf-8"))
    variables = {name: value for name, value in os.environ.items() if name not in NOT_PASSED_ON}
    script = shell_script(bundle / "rootfs", config, variables, command)
    unshare = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-euc", script]
    os.execvpe(unshare[0], unshare, {"PATH": PROGRAMS})


def shell_script(root: Path, config: dict[str, Any], variables: dict[str, str], command: list[str]) -> str:
    """Return what is run in a mount namespace of its own: it mounts the folders, gives root up and runs the command."""
    process = config["process"]
    points = [f"{root}{mount['destination']}" for mount in config["mounts"]]
    lines: list[list[str | Path]] = [["mount", "--bind", root, root]]
    for mount, point in zip(config["mounts"], points, strict=True):
        lines.append(["mkdir", "-p", point])
        lines.append([*_mount(mount, point)])
        if "ro" in mount.get("options", ()):
            lines.append(["mount", "-o", "remount,bind,ro", point])
    lines.append(["mount", "-o", "remount,bind,ro", root])
    user = process["user"]["uid"]
    environment = dict(variable.split("=", 1) for variable in process["env"]) | variables
    given = [f"{name}={value}" for name, value in environment.items()]
    chroot: list[str | Path] = ["chroot", f"--userspec={user}:{user}", f"--groups={user}", root]
    lines.append(["exec", *chroot, "env", "-i", "-C", process["cwd"], *given, *command])
    return "\n".join(shlex.join(map(str, line)) for line in lines)


def _mount(mount: dict[str, Any], point: str) -> list[str]:
    if mount["type"] == "bind":
        return ["mount", "--rbind", mount["source"], point]
    flags = [option for option in mount.get("options", ()) if option != "ro"]
    return ["mount", "-t", mount["type"], *(["-o", ",".join(flags)] if flags else []), mount["type"], point]


if __name__ == "__main__":
    sys.exit(main())
