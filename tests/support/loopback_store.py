"""What a loopback hub holds, remembers and is told."""

from __future__ import annotations

import hashlib
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.loopback_faults import Fault, FaultBook

LFS = (".parquet", ".bin", ".safetensors")
HOSTS = ("127.0.0.1", "127.0.0.2", "127.0.0.3")


@dataclass(frozen=True)
class Stored:
    """One file of a repository, hashed."""

    file: Path
    size: int
    sha256: str
    git: str

    @property
    def lfs(self) -> bool:
        return self.file.suffix in LFS


class Hub:
    """What it holds and what it remembers."""

    def __init__(self, root: Path, *, page: int, send_buffer: int) -> None:
        self.root, self.page, self.send_buffer = root, page, send_buffer
        self.faults = FaultBook()
        self.lock = threading.Lock()
        self.log: list[dict[str, Any]] = []
        self.served: dict[str, int] = {}
        self.tags: dict[str, int] = {}
        self.gated: dict[str, str] = {}  # repository: the token that may read it
        self.token = ""  # the one that may write; no other is known then
        self.visibility: dict[str, Any] = {}  # of repositories that were made
        self.made: list[list[str]] = []  # the paths of each commit that was sent
        self.pulls: list[str] = []  # pull requests, by their titles
        self.extra: list[dict[str, Any]] = []  # entries that no listing should have
        self.commits: dict[str, dict[str, Stored]] = {}
        self.next_host = 0  # where the next page of a listing is said to be
        self.circle = False  # the second page of a listing leads to itself
        self.refs: dict[str, str] = {}  # branches and tags but main, by name
        self.xet = False
        self.rate = 0  # bytes a second of each body; 0 is without limit
        self.port = 0
        self.stopping = threading.Event()
        self._hashed: dict[tuple[str, int, int], Stored] = {}

    def url(self, host: int = 0) -> str:
        return f"http://{HOSTS[host]}:{self.port}"

    def head(self, repo: str) -> str | None:
        """The commit of what lies in the repository's folder now, by "<type>/<org>/<name>"."""
        folder = self.root / repo
        if not folder.is_dir():
            return None
        files = {
            str(file.relative_to(folder)): self._store(file)
            for file in sorted(folder.rglob("*"))
            if file.is_file()
        }
        digest = hashlib.sha1(repr([(path, each.sha256) for path, each in files.items()]).encode())
        with self.lock:
            self.commits[digest.hexdigest()] = files
        return digest.hexdigest()

    def commit(self, repo: str, revision: str | None) -> str | None:
        """What a revision means; None where there is none of that name."""
        head = self.head(repo)
        named = head if revision in (None, "main") else self.refs.get(revision or "", revision)
        return named if named in self.commits else None

    def _store(self, file: Path) -> Stored:
        found = file.stat()
        key = (str(file), found.st_size, found.st_mtime_ns)
        if key not in self._hashed:
            sha256, git = hashlib.sha256(), hashlib.sha1(b"blob %d\0" % found.st_size)
            with file.open("rb") as stream:
                while block := stream.read(1 << 20):
                    sha256.update(block)
                    git.update(block)
            self._hashed[key] = Stored(file, found.st_size, sha256.hexdigest(), git.hexdigest())
        return self._hashed[key]

    def etag(self, path: str, file: Path) -> str:
        return f'"{self._store(file).sha256[:32]}-{self.tags.get(path, 0)}"'

    def control(self, message: dict[str, Any]) -> Any:
        """Do what the test wants."""
        do = message.pop("do")
        if do == "fault":
            self.faults.add(Fault(**message))
        elif do == "clear":
            self.faults.clear()
        elif do == "log":
            with self.lock:
                return {"requests": list(self.log), "served": dict(self.served)}
        elif do == "struck":
            return dict(self.faults.struck)
        elif do == "head":
            return self.head(message["repo"])
        elif do == "made":
            return {"commits": self.made, "pulls": self.pulls, "visibility": self.visibility}
        elif do == "sums":
            return [[path, each.sha256] for path, each in self.commits[message["commit"]].items()]
        elif do == "vanish":  # as a history that is rewritten does
            del self.commits[message["commit"]]
        elif do == "forget":
            with self.lock:
                self.log.clear()
                self.served.clear()
        elif do == "set":
            for name, value in message.items():
                setattr(self, name, value)
        elif do == "release":  # what stalls goes on, to its end
            self.stopping.set()
            self.stopping = threading.Event()
        return None
