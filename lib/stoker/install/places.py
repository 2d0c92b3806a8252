"""What of deploy/ goes where."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

DEFAULT_PREFIX, DEFAULT_USER_PREFIX = "/opt/stoker", "%h/.local/share/stoker"  # as the units write them
# Suffixes of files below deploy/: the place below /usr/local or ~/.local; {} is the name.
_UNITS = (".service", ".target", ".slice", ".timer")
_OF_BOTH = {
    ".bash": "share/bash-completion/completions/stoker",
    ".zsh": "share/zsh/site-functions/_stoker",
    ".fish": "share/fish/vendor_completions.d/stoker.fish",
}
_OF_MACHINE = {
    **dict.fromkeys(_UNITS, "lib/systemd/system/{}"),
    ".sysusers": "lib/sysusers.d/stoker.conf",
    ".tmpfiles": "lib/tmpfiles.d/stoker.conf",
    ".preset": "lib/systemd/system-preset/50-stoker.preset",
    ".catalog": "lib/systemd/catalog/stoker.catalog",
    **_OF_BOTH,
}
_OF_USER = {**dict.fromkeys(_UNITS, "share/systemd/user/{}"), **_OF_BOTH}


class Places:
    """Where an installation lies: of the machine, or of a user; below `root` in an image, or in a test."""

    def __init__(self, root: Path, is_user: bool, prefix: str) -> None:
        self.root, self.is_user, self.prefix = root, is_user, prefix
        self.local = Path.home() / ".local" if is_user else Path("/usr/local")
        self.pipelines = Path.home() / ".config/stoker" if is_user else Path("/etc/stoker")
        enabled = Path.home() / ".config/systemd/user" if is_user else Path("/etc/systemd/system")
        self.enabled = self.on_disk(enabled)  # where `systemctl enable` makes its links
        self.record = self.on_disk(self.local / "share/stoker-install/installed.json")
        self.home = self.on_disk(prefix)
        self.current = self.home / "current"
        # The command that people call, and the pages that units, alerts and the journal name.
        self.links = {self.home / page: f"current/deploy/{page}" for page in ("README.md", "docs")}
        self.links[self.on_disk(self.local / "bin/stoker")] = str(self.current / "bin/stoker")

    def on_disk(self, path: Path | str) -> Path:
        """Returns where a path lies, below the root."""
        return self.root / Path(path).relative_to("/")

    def in_force(self) -> str | None:
        """Returns the name of the environment that `current` names."""
        return self.current.readlink().name if self.current.is_symlink() else None

    def files(self, deploy: Path) -> Iterator[tuple[str, bytes]]:
        """Yields path and content of each file outside the environments, from the files of deploy/."""
        units, rows, default = "systemd/*", _OF_MACHINE, DEFAULT_PREFIX
        if self.is_user:
            units, rows, default = "systemd/user/*", _OF_USER, DEFAULT_USER_PREFIX
        for path in sorted([*deploy.glob(units), *deploy.glob("completion/*")]):
            if row := rows.get(path.suffix):
                data = path.read_bytes().replace(default.encode(), self.prefix.encode())
                yield str(self.local / row.format(path.name)), data
