"""Options: `scripts/install` in a checkout, `PYTHONPATH=WHEEL python3 -m stoker.install WHEEL` elsewhere."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from stoker.install.installer import Installer
from stoker.install.places import DEFAULT_PREFIX, DEFAULT_USER_PREFIX, Places
from stoker.install.steps import CONFIG, STORAGE, UNAVAILABLE, USAGE, Record, Refused
from stoker.install.wheel import build, default_python


def parse() -> argparse.Namespace:
    """Returns the options."""
    parser = argparse.ArgumentParser(
        prog="install",
        description="Install, upgrade or remove Stoker.",
        epilog="Example: sudo scripts/install --dry-run. Exit codes: 0, 64 usage, 65 bad data, 69 "
        "unavailable, 74 storage, 78 wrong configuration.",
    )
    add = parser.add_argument
    add("wheel", nargs="?", type=Path, help="the wheel to install; without it, the checkout's is built")
    add("--user", action="store_true", help="for this user alone, below ~/.local; needs no root")
    add("--prefix", help=f"where the environments lie (default {DEFAULT_PREFIX}, or where they are)")
    add("--python", help="the interpreter (default: STOKER_PYTHON, or /usr/bin/python3)")
    add(
        "--root",
        type=Path,
        default=Path("/"),
        help="install below this directory, for a test: it works there alone, and no systemd is told",
    )
    add("--dry-run", action="store_true", help="say what would be done, and change nothing")
    add("--uninstall", action="store_true", help="remove all but pipeline files and data")
    try:
        return parser.parse_args()
    except SystemExit as end:
        sys.exit(USAGE if end.code else 0)


def run(options: argparse.Namespace) -> None:
    """Does what the options ask; raises Refused and OSError."""
    os.umask(0o022)  # the daemons' account reads what root lays
    for name in [name for name in os.environ if name.startswith("PYTHON")]:
        del os.environ[name]  # pip would take what lies there for installed, and no daemon looks there
    root = options.root.absolute()
    default = DEFAULT_USER_PREFIX.replace("%h", str(Path.home())) if options.user else DEFAULT_PREFIX
    found = Record.read(Places(root, options.user, Path(default)).record)
    prefix = str(Path(options.prefix or (found.prefix if found else default)))
    if not re.fullmatch(r"(/[\w.+@-]+)+", prefix) or ".." in Path(prefix).parts:
        raise Refused(USAGE, f"--prefix {prefix!r}: name an absolute path of letters, digits and . _ + @ -")
    if found and prefix != (here := found.prefix):
        raise Refused(
            CONFIG, f"Stoker is installed at {here}: say --prefix {here}, or --uninstall it (data is left)"
        )
    if os.geteuid() != 0 and not (options.user or options.dry_run or root != Path("/")):
        raise Refused(USAGE, "to install for the machine needs root: use sudo, or --user")
    installer = Installer(Places(root, options.user, Path(prefix)), is_dry=options.dry_run)
    if options.uninstall:
        if found is None:
            text = "nothing is installed; or run scripts/install, which writes it again, and then this"
            raise Refused(UNAVAILABLE, f"no record in {installer.places.record.parent}: {text}")
        installer.uninstall()
        return
    named = options.python or default_python()
    if (python := shutil.which(named)) is None:
        raise Refused(USAGE, f"there is no program {named}: name the interpreter with --python")
    if options.wheel:
        installer.install(options.wheel, python)
        return
    with tempfile.TemporaryDirectory(prefix="stoker-install-") as scratch:
        installer.install(build(python, Path(scratch)), python)


def main() -> int:
    """Runs the command line; returns its exit code."""
    try:
        run(parse())
    except Refused as refused:
        print(f"install: {refused}", file=sys.stderr)
        return refused.code
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        print(f"install: {what}; correct that and run this again, it goes on from there", file=sys.stderr)
        return STORAGE
    except KeyboardInterrupt:
        print("install: interrupted; run this again, it goes on from there", file=sys.stderr)
        return 128 + signal.SIGINT
    return 0


if __name__ == "__main__":
    sys.exit(main())
