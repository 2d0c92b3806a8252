"""What of the wheel goes where."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

DEFAULT_PREFIX, DEFAULT_USER_PREFIX = "/opt/stoker", "%h/.local/share/stoker"  # as the units write them
_COMPLETION = {
    "completion/stoker.bash": "share/bash-completion/completions/stoker",
    "completion/stoker.zsh": "share/zsh/site-functions/_stoker",
    "completion/stoker.fish": "share/fish/vendor_completions.d/stoker.fish",
}
_UNITS = ("*.service", "*.target", "*.slice", "*.timer")
# Pattern of names below deploy/: the place below /usr/local or ~/.local. The first that fits; {} is the rest.
_OF_MACHINE = {
    "systemd/user/*": None,
    "systemd/stoker.sysusers": "lib/sysusers.d/stoker.conf",
    "systemd/stoker.tmpfiles": "lib/tmpfiles.d/stoker.conf",
    "systemd/stoker.preset": "lib/systemd/system-preset/50-stoker.preset",
    "systemd/stoker.catalog": "lib/systemd/catalog/stoker.catalog",
    **{f"systemd/{kind}": "lib/systemd/system/{}" for kind in _UNITS},
    **_COMPLETION,
}
_OF_USER = {**{f"systemd/user/{kind}": "share/systemd/user/{}" for kind in _UNITS}, **_COMPLETION}


@dataclass(frozen=True)
class Places:
    """Where an installation lies: of the machine, or of a user; below `root` in an image, or in a test."""

    root: Path
    is_user: bool
    prefix: Path

    @property
    def home(self) -> Path:
        """The directory of the environments and of `current`."""
        return self.on_disk(self.prefix)

    @property
    def local(self) -> Path:
        """What the other files lie below."""
        return Path.home() / ".local" if self.is_user else Path("/usr/local")

    @property
    def record(self) -> Path:
        """The record of what was installed; its lock lies beside it."""
        return self.on_disk(self.local / "share/stoker-install/installed.json")

    @property
    def command(self) -> Path:
        """The link that people call."""
        return self.on_disk(self.local / "bin/stoker")

    @property
    def pipelines(self) -> Path:
        """The directory of the pipeline files."""
        return Path.home() / ".config/stoker" if self.is_user else Path("/etc/stoker")

    @property
    def enabled(self) -> Path:
        """The directory where `systemctl enable` makes its links."""
        inside = Path.home() / ".config/systemd/user" if self.is_user else Path("/etc/systemd/system")
        return self.on_disk(inside)

    def on_disk(self, path: Path) -> Path:
        """Returns where a path lies, below the root."""
        return self.root / path.relative_to("/")

    def files(self, deploy: Mapping[str, bytes]) -> Iterator[tuple[Path, bytes]]:
        """Yields path and content of each file outside the environments, from the files of deploy/."""
        rows = _OF_USER if self.is_user else _OF_MACHINE
        for name, data in sorted(deploy.items()):
            place = next((row for pattern, row in rows.items() if fnmatch.fnmatch(name, pattern)), None)
            if place is not None:
                rest = re.sub(r"^systemd/(user/)?", "", name)
                default = DEFAULT_USER_PREFIX if self.is_user else DEFAULT_PREFIX
                whole = data.replace(default.encode(), str(self.prefix).encode())
                yield self.local / place.format(rest), whole
