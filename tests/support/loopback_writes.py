"""What a loopback hub answers to who writes: repositories made, large files taken, commits, pull requests."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

from support.loopback_store import LFS, Hub

if TYPE_CHECKING:

    class _Answers(BaseHTTPRequestHandler):
        hub: Hub
        plain: str
        query: dict[str, list[str]]

        def _reply(self, status: int, body: bytes = b"", **headers: str | None) -> None: ...
        def _json(self, thing: Any, **headers: str | None) -> None: ...
        def _refused(self, place: str) -> bool: ...

else:
    _Answers = object


class Writes(_Answers):
    """The part of a connection's handler that writes."""

    def do_POST(self) -> None:  # noqa: N802 - the base class calls it so
        self._take(self._write)

    def do_PUT(self) -> None:  # noqa: N802
        self._take(self._upload)

    def _take(self, answer: Callable[[bytes], None]) -> None:
        parts = urlsplit(self.path)
        self.plain, self.query = unquote(parts.path), parse_qs(parts.query)
        try:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if not self._refused("cdn" if self.command == "PUT" else "api"):
                answer(body)
        except OSError:
            self.close_connection = True

    def known(self) -> bool:
        """Whether the request has no wrong token; answers it otherwise."""
        if self.headers.get("Authorization") in (None, f"Bearer {self.hub.token}") or not self.hub.token:
            return True
        self._reply(401, X_Error_Message="Invalid username or password.")
        return False

    def _write(self, body: bytes) -> None:
        if self.headers.get("Authorization") is None or not self.known():
            self._reply(401, X_Error_Message="Invalid username or password.")
        elif self.plain == "/api/validate-yaml":
            self._json({"errors": [], "warnings": [{"message": "a word about the card"}]})
        elif self.plain == "/api/repos/create":
            self._create(json.loads(body))
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/(preupload|commit)/(.+)", self.plain):
            repo = f"model/{found[1]}"
            self._preupload(repo, json.loads(body)) if found[2] == "preupload" else self._commit(repo, body)
        elif self.plain.endswith(".git/info/lfs/objects/batch"):
            self._json({"transfer": "basic", "objects": [*map(self._where, json.loads(body)["objects"])]})
        elif self.plain == "/verify":
            there = self.hub.root / "lfs" / json.loads(body)["oid"]
            self._reply(200 if there.is_file() else 404)
        else:
            self._reply(404)

    def _create(self, wanted: dict[str, Any]) -> None:
        name = f"{wanted['organization']}/{wanted['name']}"
        folder = self.hub.root / wanted.get("type", "model") / name
        if folder.is_dir():
            self._reply(409, b'{"error": "You already created this repo"}')
            return
        folder.mkdir(parents=True)
        (folder / ".gitattributes").write_text("*.safetensors filter=lfs\n")
        self.hub.visibility[name] = wanted.get("visibility")
        self._json({"url": f"{self.hub.url()}/{name}", "name": name})

    def _preupload(self, repo: str, wanted: dict[str, Any]) -> None:
        there = self.hub.commits[self.hub.head(repo) or ""]
        told = []
        for path in (each["path"] for each in wanted["files"]):
            known, mode = there.get(path), "lfs" if Path(path).suffix in LFS else "regular"
            oid = known and (known.sha256 if known.lfs else known.git)
            told.append({"path": path, "uploadMode": mode, "shouldIgnore": False, "oid": oid})
        self._json({"files": told})

    def _where(self, wanted: dict[str, Any]) -> dict[str, Any]:
        if (self.hub.root / "lfs" / wanted["oid"]).is_file():
            return wanted
        upload = {"href": f"{self.hub.url(1)}/upload/{wanted['oid']}?Signature=secret"}
        return {**wanted, "actions": {"upload": upload, "verify": {"href": f"{self.hub.url()}/verify"}}}

    def _upload(self, body: bytes) -> None:
        name = self.plain.rpartition("/")[2]
        if hashlib.sha256(body).hexdigest() != name:
            self._reply(400)
            return
        (self.hub.root / "lfs").mkdir(exist_ok=True)
        (self.hub.root / "lfs" / name).write_bytes(body)
        self._reply(200)

    def _commit(self, repo: str, body: bytes) -> None:
        faults = self.hub.faults
        folder = self.hub.root / repo
        if faults.take("api", self.plain, "moved"):
            (folder / "another.txt").write_text("by somebody else")
        header, *changes = (json.loads(line) for line in body.splitlines())
        if header["value"]["parentCommit"] != self.hub.head(repo):
            self._reply(412, b'{"error": "A commit has happened since. Please refresh and try again."}')
            return
        number = len(self.hub.pulls) + 1
        if "create_pr" in self.query:
            repo = f"pulls/{number}"
            folder = shutil.copytree(folder, self.hub.root / repo)
        for change in changes:
            self._apply(folder, change["key"], change["value"])
        commit = self.hub.head(repo)
        page = f"{self.hub.url()}/{self.plain.split('/')[3]}/{self.plain.split('/')[4]}"
        told = {"success": True, "commitOid": commit, "commitUrl": f"{page}/commit/{commit}"}
        with self.hub.lock:
            self.hub.made.append([each["value"].get("path") for each in changes])
            if "create_pr" in self.query:
                self.hub.pulls.append(header["value"]["summary"])
                self.hub.refs[f"refs/pr/{number}"] = commit or ""
                told["pullRequestUrl"] = f"{page}/discussions/{number}"
        if fault := faults.take("api", self.plain, "lost"):
            self.hub.stopping.wait(fault.seconds)
            self.close_connection = True
            return
        self._json(told)

    def _apply(self, folder: Path, kind: str, value: dict[str, Any]) -> None:
        place = folder / value["path"]
        place.unlink(missing_ok=kind != "deletedFile")
        if kind == "file":
            place.write_bytes(base64.b64decode(value["content"]))
        elif kind == "lfsFile":
            shutil.copyfile(self.hub.root / "lfs" / value["oid"], place)

    def discussions(self, name: str) -> None:
        """Answers the open pull requests of a repository."""
        about = {"createdAt": "2026-01-01T00:00:00.000Z", "status": "open", "isPullRequest": True}
        about["repo"] = {"name": name, "type": "model"}
        told = [{**about, "num": at, "title": each} for at, each in enumerate(self.hub.pulls, 1)]
        self._json({"discussions": told, "count": len(told), "start": 0})
