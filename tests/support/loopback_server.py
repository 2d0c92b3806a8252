"""A hub on loopback, in a process of its own: the repositories' endpoints, a CDN, plain files, and faults.

The hub answers at 127.0.0.1, its CDN at 127.0.0.2, another host at 127.0.0.3, all on one port. Below `root`
lie `dataset/<org>/<name>/...`, `model/<org>/<name>/...` and `urls/...`. Standard input takes JSON lines
{"do": ...}, each answered by a line on standard output; the first line says the port. It ends with its input.
"""

from __future__ import annotations

import fcntl
import hmac
import json
import os
import re
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from support.loopback_faults import BODY_KINDS, Fault
from support.loopback_store import HOSTS, Hub
from support.loopback_writes import Writes

SECRET = b"loopback"
BLOCK = 64 << 10
SLOW_BLOCK = 16 << 10  # with a rate
UNSENT = 0x5411  # SIOCOUTQ: bytes that the other side has not acknowledged

Count = Callable[[int], None]


class Handler(Writes, BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # a body would wait for its head's acknowledgement
    hub: Hub

    def setup(self) -> None:
        super().setup()
        if self.hub.send_buffer:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.hub.send_buffer)

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        self.plain, self.query = unquote(parts.path), parse_qs(parts.query)
        host = self.connection.getsockname()[0]
        try:
            if self.plain.startswith("/cdn/"):
                self._cdn(self.plain.removeprefix("/cdn/"))
            elif self.plain.startswith("/files/"):
                self._plain_file(self.plain.removeprefix("/files/"))
            elif host != HOSTS[0]:
                self._reply(404)
            elif self.plain.startswith("/api/"):
                self._api(self.plain.removeprefix("/api/"))
            elif found := re.fullmatch(r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)", self.plain):
                repo = f"{'dataset' if found[1] else 'model'}/{found[2]}"
                self._resolve(repo, found[3], found[4])
            else:
                self._reply(404)
        except OSError:
            self.close_connection = True

    do_HEAD = do_GET  # noqa: N815 - the base class calls it so

    # Answers

    def _note(self, status: int) -> dict[str, Any]:
        entry = {
            "host": self.connection.getsockname()[0],
            "method": self.command,
            "path": self.plain,
            "range": self.headers.get("Range"),
            "if_range": self.headers.get("If-Range"),
            "encoding": self.headers.get("Accept-Encoding"),
            "authorization": self.headers.get("Authorization"),
            "via": self.path if self.path.startswith("http") else None,
            "status": status,
            "at": time.monotonic(),
            "sent": 0,
        }
        with self.hub.lock:
            self.hub.log.append(entry)
        return entry

    def _reply(self, status: int, body: bytes = b"", **headers: str | None) -> None:
        self._note(status)
        self.send_response(status)
        for name, value in headers.items():
            if value is not None:
                self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _json(self, thing: Any, **headers: str | None) -> None:
        self._reply(200, json.dumps(thing).encode(), Content_Type="application/json", **headers)

    def _refused(self, place: str) -> bool:
        """Whether a fault answered already."""
        if fault := self.hub.faults.take(place, self.plain, "slow_head"):
            self.hub.stopping.wait(fault.seconds)
        fault = self.hub.faults.take(place, self.plain, "status", "loop", "elsewhere")
        if fault is None:
            return False
        if fault.kind == "status":
            after = fault.retry_after
            if after is not None and after.startswith("date "):
                after = formatdate(time.time() + float(after.removeprefix("date ")), usegmt=True)
            self._reply(fault.code, b'{"error": "injected"}', Retry_After=after)
        elif fault.kind == "loop":
            turn = int(self.query.get("turn", ["0"])[0]) + 1
            self._reply(302, Location=f"{self.plain}?turn={turn % 3}")
        else:
            query = urlsplit(self.path).query
            self._reply(302, Location=f"{self.hub.url(2)}{quote(self.plain)}{query and '?'}{query}")
        return True

    # The hub

    def _allowed(self, repo: str) -> bool:
        wanted = self.hub.gated.get(repo)
        given = self.headers.get("Authorization")
        if wanted is None or given == f"Bearer {wanted}":
            return True
        self._reply(
            403 if given else 401,
            b'{"error": "gated"}',
            X_Error_Code="GatedRepo",
            X_Error_Message=f"Access to {repo} is restricted",
        )
        return False

    def _api(self, rest: str) -> None:
        found = re.fullmatch(
            r"(dataset|model)s/([^/]+/[^/]+)(?:/revision/(?P<ref>.+)|/tree/(?P<at>[^/]+)(?:/.*)?)?", rest
        )
        if self._refused("api") or not self.known():
            return
        if asked := re.fullmatch(r"models/([^/]+/[^/]+)/discussions", rest):
            self.discussions(asked[1])
        elif found is None:
            self._reply(404, X_Error_Code="RepoNotFound")
        else:
            self._about(f"{found[1]}/{found[2]}", found)

    def _about(self, repo: str, found: re.Match[str]) -> None:
        if self.hub.head(repo) is None:
            is_known = self.hub.token and self.headers.get("Authorization")
            body = b'{"error": "no such repository"}'
            self._reply(404 if is_known else 401, body, X_Error_Code="RepoNotFound")
        elif (commit := self.hub.commit(repo, found["ref"] or found["at"])) is None:
            self._reply(404, X_Error_Code="RevisionNotFound")
        elif found["at"]:
            if self._allowed(repo):
                self._tree(commit)
        else:
            told = {
                "id": found[2],
                "sha": commit,
                "private": self.hub.visibility.get(found[2]) == "private",
                "gated": False,
                "disabled": False,
            }
            self._json(told | {"downloads": 0, "likes": 0, "tags": [], "siblings": [], "_id": "0" * 24})

    def _tree(self, commit: str) -> None:
        entries = []
        for path, stored in self.hub.commits[commit].items():
            entry: dict[str, Any] = {"type": "file", "oid": stored.git, "size": stored.size, "path": path}
            if stored.lfs:
                entry["lfs"] = {"oid": stored.sha256, "size": stored.size, "pointerSize": 134}
                if self.hub.xet:
                    entry["xetHash"] = stored.sha256
            entries.append(entry)
        folders = {path.rpartition("/")[0] for path in self.hub.commits[commit]} - {""}
        entries += [{"type": "directory", "oid": "0" * 40, "size": 0, "path": each} for each in folders]
        entries += self.hub.extra
        at = int(self.query.get("cursor", ["0"])[0])
        link = None
        if at + self.hub.page < len(entries):
            step = 0 if self.hub.circle and at else self.hub.page
            there = f"{self.hub.url(self.hub.next_host)}{self.plain}?recursive=true&cursor={at + step}"
            link = f'<{there}>; rel="next"'
        self._json(entries[at : at + self.hub.page], Link=link)

    def _resolve(self, repo: str, revision: str, path: str) -> None:
        if self._refused("resolve") or not self._allowed(repo):
            return
        commit = self.hub.commit(repo, revision)
        if commit is None:
            self._reply(404, X_Error_Code="RevisionNotFound")
            return
        stored = self.hub.commits[commit].get(path)
        if stored is None:
            self._reply(404, X_Error_Code="EntryNotFound", X_Repo_Commit=commit)
            return
        headers = {"X_Repo_Commit": commit, "Accept_Ranges": "bytes"}
        if not stored.lfs:
            self._body("resolve", path, stored.file, f'"{stored.git}"', **headers)
            return
        if self.hub.xet:
            headers["X_Xet_Hash"] = stored.sha256
        expires = int(time.time()) + (-10 if self.hub.faults.take("resolve", path, "expired") else 3600)
        place = f"/cdn/{quote(f'{repo}/{commit}/{path}')}"
        self._reply(
            302,
            Location=f"{self.hub.url(1)}{place}?Expires={expires}&Signature={_sign(place, expires)}",
            X_Linked_Etag=f'"{stored.sha256}"',
            X_Linked_Size=str(stored.size),
            **headers,
        )

    def _cdn(self, place: str) -> None:
        if self._refused("cdn"):
            return
        expires = int(self.query.get("Expires", ["0"])[0])
        signed = self.query.get("Signature", [""])[0] == _sign(f"/cdn/{quote(place)}", expires)
        if not signed or expires < time.time():
            self._reply(403, b"<Error>Request has expired</Error>")
            return
        kind, org, name, commit, path = place.split("/", 4)
        stored = self.hub.commits[commit][path]
        self._body("cdn", f"{kind}/{org}/{name}/{path}", stored.file, self.hub.etag(place, stored.file))

    def _plain_file(self, path: str) -> None:
        if self._refused("url"):
            return
        version = self.hub.root / "urls" / f"{path}.v{self.hub.tags.get(self.plain, 0)}"
        file = version if version.is_file() else self.hub.root / "urls" / path
        if not file.is_file():
            self._reply(404)
            return
        self._body("url", path, file, self.hub.etag(self.plain, file))

    # Bodies

    def _body(self, place: str, path: str, file: Path, etag: str, **headers: str | None) -> None:
        faults = self.hub.faults
        size = file.stat().st_size
        low, status = 0, 200
        high = size
        ranged = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        unchanged = self.headers.get("If-Range") in (None, etag)
        if ranged and not faults.take(place, path, "no_range") and unchanged:
            low, status = int(ranged[1]), 206
            high = min(size, int(ranged[2] or size) + 1)
        if low >= size > 0:
            self._reply(416, Content_Range=f"bytes */{size}")
            return
        told = size
        if fault := faults.take(place, path, "length"):
            told = fault.size
        fault = faults.take(place, path, *BODY_KINDS)
        entry = self._note(status)
        self.send_response(status)
        if status == 206:
            self.send_header("Content-Range", f"bytes {low}-{min(high, told) - 1}/{told}")
        if faults.take(place, path, "encoded"):
            self.send_header("Content-Encoding", "gzip")
        for name, value in {"ETag": etag, "Accept_Ranges": "bytes", **headers}.items():
            if value is not None:
                self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str((told if high == size else high) - low))
        self.end_headers()
        self.wfile.flush()
        if self.command != "HEAD":
            self._send(file, low, min(high, told), fault, lambda sent: self._count(entry, path, sent))
            if told > size:
                self.close_connection = True

    def _count(self, entry: dict[str, Any], path: str, sent: int) -> None:
        with self.hub.lock:
            entry["sent"] += sent
            self.hub.served[path] = self.hub.served.get(path, 0) + sent

    def _send(self, file: Path, low: int, high: int, fault: Fault | None, count: Count) -> None:
        cut = high if fault is None else max(low, min(high, fault.after))
        descriptor = os.open(file, os.O_RDONLY)
        try:
            self._copy(descriptor, low, cut, count)
            if fault is None:
                return
            if fault.kind == "wrong":
                byte = os.pread(descriptor, 1, cut)
                self.connection.sendall(bytes(each ^ 0xFF for each in byte))
                count(len(byte))
                self._copy(descriptor, cut + 1, high, count)
            elif fault.kind == "stall":
                if not self.hub.stopping.wait(fault.seconds):
                    return
                self._copy(descriptor, cut, high, count)
            elif fault.kind == "trickle":
                while cut < high and not self.hub.stopping.wait(fault.seconds):
                    self._copy(descriptor, cut, cut + 1, count)
                    cut += 1
            else:
                self._break_off(fault)
        finally:
            os.close(descriptor)

    def _break_off(self, fault: Fault) -> None:
        self.close_connection = True
        if fault.kind == "etag":
            place = self.plain.removeprefix("/cdn/")
            self.hub.tags[place] = self.hub.tags.get(place, 0) + 1
        if fault.kind in ("reset", "etag"):
            # With what was sent delivered first: a reset may overtake it.
            _drain(self.connection)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.rfile.close()
        self.connection.close()

    def _copy(self, descriptor: int, low: int, high: int, count: Count) -> None:
        rate, due = self.hub.rate, time.monotonic()
        while low < high:
            most = min(high - low, SLOW_BLOCK if rate else 16 * BLOCK)
            sent = os.sendfile(self.connection.fileno(), descriptor, low, most)
            if not sent:
                return
            low += sent
            count(sent)
            if rate:
                due += sent / rate
                time.sleep(max(0.0, due - time.monotonic()))


def _drain(connection: socket.socket) -> None:
    deadline = time.monotonic() + 5.0
    while time.monotonic() < deadline:
        if not struct.unpack("I", fcntl.ioctl(connection.fileno(), UNSENT, bytes(4)))[0]:
            return
        time.sleep(0.001)


def _sign(place: str, expires: int) -> str:
    return hmac.new(SECRET, f"{place}?{expires}".encode(), "sha256").hexdigest()[:32]


class Server(ThreadingHTTPServer):
    """A thread a connection."""

    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, *_: Any) -> None:
        pass


def serve(hub: Hub) -> list[Server]:
    """Answer at every host, on one port that is free at all of them."""
    handler = type("HubHandler", (Handler,), {"hub": hub})
    while True:
        servers = [Server((HOSTS[0], 0), handler)]
        port = servers[0].server_port
        try:
            servers += [Server((host, port), handler) for host in HOSTS[1:]]
        except OSError:
            servers[0].server_close()
            continue
        hub.port = port
        for server in servers:
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        return servers


def main(argv: list[str]) -> None:
    """Serve until the input ends."""
    hub = Hub(Path(argv[0]), page=int(argv[1]), send_buffer=int(argv[2]))
    serve(hub)
    print(json.dumps({"port": hub.port}), flush=True)
    for line in sys.stdin:
        print(json.dumps({"answer": hub.control(json.loads(line))}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
