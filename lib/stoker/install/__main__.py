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

from stoker.install import environment, installer
from stoker.install.places import DEFAULT_PREFIX, DEFAULT_USER_PREFIX, Places
from stoker.install.steps import CONFIG, STORAGE, UNAVAILABLE, USAGE, Refused, locked


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
    add("--python", help="the interpreter (default: STOKER_PYTHON, or the one that runs this)")
    add("--root", type=Path, default=Path("/"), help="install below this directory, for a test")
    add("--dry-run", action="store_true", help="say what would be done, and change nothing")
    add("--uninstall", action="store_true", help="remove all but pipeline files and data")
    try:
        return parser.parse_args()
    except SystemExit as end:
        sys.exit(USAGE if end.code else 0)


def places_of(options: argparse.Namespace) -> Places:
    """Returns where to install, or where it was installed; raises Refused."""
    root = options.root.absolute()
    default = DEFAULT_USER_PREFIX.replace("%h", str(Path.home())) if options.user else DEFAULT_PREFIX
    record = installer.read_record(Places(root, options.user, default).record)
    if options.uninstall and record is None:
        text = "nothing is installed; or run scripts/install, which writes it again, and then this"
        raise Refused(UNAVAILABLE, f"no record of an installation: {text}")
    here = record and record["prefix"]
    prefix = str(Path(options.prefix or here or default))
    if not re.fullmatch(r"(/[\w.+@-]+)+", prefix) or ".." in Path(prefix).parts:
        raise Refused(USAGE, f"--prefix {prefix!r}: name an absolute path of letters, digits and . _ + @ -")
    if here and prefix != here:
        text = f"say --prefix {here}, or --uninstall it (data is left)"
        raise Refused(CONFIG, f"Stoker is installed at {here}: {text}")
    if os.geteuid() != 0 and not (options.user or options.dry_run or root != Path("/")):
        raise Refused(USAGE, "to install for the machine needs root: use sudo, or --user")
    return Places(root, options.user, prefix)


def run(options: argparse.Namespace, scratch: Path) -> None:
    """Does what the options ask; raises Refused and OSError."""
    places, lock = places_of(options), ".lock"
    if options.uninstall and options.dry_run:
        print(f"would remove {places.home}, and what {places.record} names")
        return
    if options.uninstall:
        with locked(places.record.with_name(lock)):
            installer.uninstall(places)
        return
    named = options.python or os.environ.get("STOKER_PYTHON") or sys.executable
    if (found := shutil.which(named)) is None:
        raise Refused(USAGE, f"there is no program {named}: name the interpreter with --python")
    # Resolved: where the system comes to have another Python, the environment's own is often there still.
    python = str(Path(found).resolve())
    installer.require_place(places, python)
    wheel = (options.wheel or environment.build(python, scratch)).absolute()
    name = environment.name_of(wheel, python)
    if options.dry_run:
        said = f"would put {name} in force in place of {places.in_force() or 'none'} at {places.home}"
        print(f"{said}, and write units, account and completion below {places.on_disk(places.local)}")
        return
    with locked(places.record.with_name(lock)):
        installer.install(places, wheel, python, name)
    user = "--user " if places.is_user else ""
    print(f"start a pipeline: systemctl {user}enable --now stoker@NAME.target")
    print(f"after an upgrade: stoker reload {places.pipelines}/NAME.yaml (training continues)")
    print(f"remove it: {places.current}/bin/python -m stoker.install {user}--uninstall")
    print(f"settings that may help this host: {places.current}/deploy/systemd/stoker.sysctl")


def main() -> int:
    """Runs the command line; returns its exit code."""
    os.umask(0o022)  # the daemons' account reads what root lays
    for name in [name for name in os.environ if name.startswith("PYTHON")]:
        del os.environ[name]  # pip would take what lies there for installed, and no daemon looks there
    try:
        with tempfile.TemporaryDirectory(prefix="stoker-install-") as scratch:
            run(parse(), Path(scratch))
    except Refused as refused:
        print(f"install: {refused}", file=sys.stderr)
        return refused.code
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        print(f"install: {what}; correct that and run this again, it continues from there", file=sys.stderr)
        return STORAGE
    except KeyboardInterrupt:
        print("install: interrupted; run this again, it continues from there", file=sys.stderr)
        return 128 + signal.SIGINT
    return 0


if __name__ == "__main__":
    sys.exit(main())
