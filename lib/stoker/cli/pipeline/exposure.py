"""How exposed a unit is, by `systemd-analyze security`, with a drop-in that need not be installed yet."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from stoker.config.load import deploy_dir

UNIT_PATH = (
    *(Path(place, "systemd/system") for place in ("/etc", "/run", "/usr/local/lib", "/usr/lib")),
    deploy_dir() / "systemd",  # as they are shipped, where they are not installed
)
_SCORE = re.compile(r"exposure level for \S+: ([\d.]+ \w+)")
_MOST_S = 60.0


def exposure(unit: str, drop_in: str, path: tuple[Path, ...] = UNIT_PATH) -> str:
    """Returns a sentence on the exposure of an installed unit with this drop-in beside its others."""
    template = re.sub(r"@.*\.", "@.", unit)
    found = next((directory / template for directory in path if (directory / template).is_file()), None)
    tool = shutil.which("systemd-analyze")
    if found is None or tool is None:
        lacking = "systemd-analyze" if tool is None else template
        return f"its exposure is not known here, because {lacking} is not installed"
    with tempfile.TemporaryDirectory(prefix="stoker-units-") as name:
        place = Path(name)
        shutil.copy(found, place / unit)
        for each in (each for directory in path for each in sorted(directory.glob("stoker-*.d"))):
            shutil.copytree(each, place / each.name, dirs_exist_ok=True)
        (place / f"{unit}.d").mkdir(exist_ok=True)
        (place / f"{unit}.d" / "50-stoker.conf").write_text(drop_in)
        command = [tool, "security", "--offline=yes", "--no-pager", str(place / unit)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_MOST_S, check=False)
    score = _SCORE.search(done.stdout)
    if score is None:
        return f"its exposure is not known: {' '.join(done.stderr.split())}"
    return f"{unit} has an exposure of {score[1]} (systemd-analyze security; 0 is none, 10 the most)"
