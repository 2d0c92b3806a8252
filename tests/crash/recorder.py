"""Records what a write path does to a directory by standing in for the `os` functions it calls.

The real calls are made; each is noted as a step on numbered nodes. Changes that came by another way (open(),
mmap, a C library) are found by comparing the tree with the notes before a sync, a rename and at the end.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from crash.model import (
    ROOT,
    Acknowledged,
    Entries,
    Key,
    Node,
    Sync,
    Trace,
    Truncate,
    Write,
    apply_data,
)

_active: list[Recorder] = []


def acknowledge(value: Any) -> None:
    """Say, inside a recorded write path, that what was done so far is relied on; elsewhere do nothing."""
    for recorder in _active:
        recorder.acknowledge(value)


@contextlib.contextmanager
def recording(root: Path) -> Iterator[Trace]:
    """Record what the block does below root; the trace is complete when the block ends."""
    recorder = Recorder(root)
    recorder.scan()
    originals = {name: getattr(os, name) for name in recorder.replacements}
    for name, replacement in recorder.replacements.items():
        setattr(os, name, replacement)
    _active.append(recorder)
    try:
        yield recorder.trace
    finally:
        _active.remove(recorder)
        for name, original in originals.items():
            setattr(os, name, original)
    recorder.absorb()


class Recorder:
    """Notes the steps of one directory; a lock keeps the steps of several threads apart."""

    def __init__(self, root: Path) -> None:
        self.root = os.path.realpath(root)
        self.trace = Trace(nodes={ROOT: Node("dir", 0o755)})
        self._names: dict[Key, int] = {}
        self._content: dict[int, bytearray] = {}
        self._descriptors: dict[int, tuple[int, tuple[int, int]]] = {}
        self._lock = threading.RLock()
        self._os = {name: getattr(os, name) for name in dir(os) if callable(getattr(os, name))}
        self.replacements: dict[str, Callable[..., Any]] = {
            "open": self._open,
            "close": self._close,
            "write": lambda fd, data: self._written("write", fd, None, fd, data),
            "writev": lambda fd, buffers: self._written("writev", fd, None, fd, buffers),
            "pwrite": lambda fd, data, offset: self._written("pwrite", fd, offset, fd, data, offset),
            "pwritev": lambda fd, buffers, offset, flags=0: self._written(
                "pwritev", fd, offset, fd, buffers, offset, flags
            ),
            "ftruncate": self._truncate,
            "truncate": self._truncate,
            "fsync": lambda fd: self._sync("fsync", fd),
            "fdatasync": lambda fd: self._sync("fdatasync", fd),
            "rename": lambda *a, **k: self._rename("rename", *a, **k),
            "replace": lambda *a, **k: self._rename("replace", *a, **k),
            "link": self._link,
            "symlink": lambda *a, **k: self._made("symlink", a[1], *a, **k),
            "mkdir": lambda *a, **k: self._made("mkdir", a[0], *a, **k),
            "unlink": lambda *a, **k: self._gone("unlink", *a, **k),
            "remove": lambda *a, **k: self._gone("remove", *a, **k),
            "rmdir": lambda *a, **k: self._gone("rmdir", *a, **k),
        }

    def scan(self) -> None:
        """Take what is there now as the durable beginning."""
        self.absorb()
        self.trace.steps.clear()
        self.trace.names = dict(self._names)
        self.trace.content = {node: bytes(data) for node, data in self._content.items()}

    def acknowledge(self, value: Any) -> None:
        """Note that what was done so far is relied on."""
        with self._lock:
            self.absorb()
            self.trace.steps.append(Acknowledged(f"acknowledge {value}", value))

    def absorb(self) -> None:
        """Note what changed behind our back: new names, names gone, other content."""
        with self._lock:
            self._absorb_dir(ROOT, self.root)

    def _absorb_dir(self, node: int, path: str) -> None:
        known = {name for where, name in self._names if where == node}
        for name in sorted(known - set(self._os["listdir"](path))):
            self._note_entries(f"unlink {name} (unseen)", node, [((node, name), None)])
        for entry in sorted(self._os["scandir"](path), key=lambda entry: entry.name):
            child = self._names.get((node, entry.name))
            if child is None:
                child = self._new_node(entry.path)
                self._note_entries(f"create {entry.name}", node, [((node, entry.name), child)])
            if self.trace.nodes[child].kind == "dir":
                self._absorb_dir(child, entry.path)
            elif self.trace.nodes[child].kind == "file":
                self._absorb_content(child, entry.path)

    def _absorb_content(self, node: int, path: str) -> None:
        if not stat.S_ISREG(self._os["lstat"](path).st_mode):
            return
        with open(path, "rb") as file:
            found = file.read()
        noted = self._content[node]
        if found == noted:
            return
        if len(found) < len(noted):
            self._note_data(Truncate(f"truncate {self._label(path)} (unseen)", node, len(found)))
        if found != noted:
            same = next((i for i, (a, b) in enumerate(zip(found, noted, strict=False)) if a != b), len(noted))
            self._note_data(Write(f"write {self._label(path)} (unseen)", node, same, found[same:]))

    def _open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        with self._lock:
            descriptor: int = self._os["open"](path, flags, mode, dir_fd=dir_fd)
            where = self._os["readlink"](f"/proc/self/fd/{descriptor}")
            key = self._key(where)
            if where == self.root:
                self._remember(descriptor, ROOT)
            elif key is not None:
                node = self._names.get(key)
                if node is None:
                    node = self._new_node(where)
                    self._note_entries(f"create {self._label(where)}", key[0], [(key, node)])
                elif flags & os.O_TRUNC and self._content.get(node):
                    self._note_data(Truncate(f"truncate {self._label(where)}", node, 0))
                self._remember(descriptor, node)
            return descriptor

    def _close(self, descriptor: int) -> None:
        with self._lock:
            self._descriptors.pop(descriptor, None)
            self._os["close"](descriptor)

    def _written(self, name: str, descriptor: int, offset: int | None, *arguments: Any) -> int:
        with self._lock:
            node = self._node_of(descriptor)
            if node is None or node not in self._content:
                return int(self._os[name](*arguments))
            result = int(self._os[name](*arguments))
            if offset is None:  # where the call left the descriptor tells where it wrote, O_APPEND or not
                offset = self._os["lseek"](descriptor, 0, os.SEEK_CUR) - result
            data = _joined(arguments[1])[:result]
            self._note_data(Write(f"{name} {self._label_of(descriptor)} +{result}", node, offset, data))
            return result

    def _truncate(self, target: Any, length: int) -> None:
        with self._lock:
            self._os["truncate"](target, length)
            if isinstance(target, int):
                node = self._node_of(target)
                label = self._label_of(target)
            else:
                key = self._key(os.path.realpath(target))
                node = None if key is None else self._names.get(key)
                label = str(target)
            if node is not None:
                self._note_data(Truncate(f"truncate {label} to {length}", node, length))

    def _sync(self, name: str, descriptor: Any) -> None:
        with self._lock:
            number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
            self.absorb()
            self._os[name](descriptor)
            node = self._node_of(number)
            if node is not None:
                self.trace.steps.append(Sync(f"{name} {self._label_of(number)}", node))

    def _rename(self, name: str, source: Any, target: Any, **where: Any) -> None:
        with self._lock:
            self.absorb()
            old = self._key(_absolute(source, where.get("src_dir_fd")))
            new = self._key(_absolute(target, where.get("dst_dir_fd")))
            self._os[name](source, target, **where)
            label = f"rename {self._label(source)} -> {self._label(target)}"
            if old is not None and new is not None:
                self._note_entries(label, new[0], [(old, None), (new, self._names[old])])
            elif old is not None:
                self._note_entries(label, old[0], [(old, None)])
            # One that comes in from elsewhere is found by the next absorb.

    def _link(self, source: Any, target: Any, **where: Any) -> None:
        with self._lock:
            self.absorb()
            old = self._key(_absolute(source, where.get("src_dir_fd")))
            new = self._key(_absolute(target, where.get("dst_dir_fd")))
            self._os["link"](source, target, **where)
            if old is not None and new is not None:
                label = f"link {self._label(source)} -> {self._label(target)}"
                self._note_entries(label, new[0], [(new, self._names[old])])

    def _made(self, name: str, path: Any, *arguments: Any, **options: Any) -> None:
        with self._lock:
            self._os[name](*arguments, **options)
            where = _absolute(path, options.get("dir_fd"))
            key = self._key(where)
            if key is not None:
                node = self._new_node(where)
                self._note_entries(f"{name} {self._label(where)}", key[0], [(key, node)])

    def _gone(self, name: str, path: Any, **options: Any) -> None:
        with self._lock:
            self.absorb()
            key = self._key(_absolute(path, options.get("dir_fd")))
            self._os[name](path, **options)
            if key is not None:
                self._note_entries(f"{name} {self._label(path)}", key[0], [(key, None)])

    def _new_node(self, path: str) -> int:
        found = self._os["lstat"](path)
        number = len(self.trace.nodes)
        mode = stat.S_IMODE(found.st_mode)
        if stat.S_ISDIR(found.st_mode):
            self.trace.nodes[number] = Node("dir", mode)
        elif stat.S_ISLNK(found.st_mode):
            self.trace.nodes[number] = Node("symlink", mode, self._os["readlink"](path))
        else:
            self.trace.nodes[number] = Node("file", mode)
            self._content[number] = bytearray()
        return number

    def _note_entries(self, label: str, anchor: int, changes: list[tuple[Key, int | None]]) -> None:
        for key, node in changes:
            if node is None:
                self._names.pop(key, None)
            else:
                self._names[key] = node
        self.trace.steps.append(Entries(label, anchor, tuple(changes)))

    def _note_data(self, effect: Write | Truncate) -> None:
        apply_data(self._content[effect.node], effect)
        self.trace.steps.append(effect)

    def _key(self, path: str) -> Key | None:
        """The directory node and name of a path below root; None where there is no such directory."""
        parent = os.path.realpath(os.path.dirname(path))
        if parent != self.root and not parent.startswith(self.root + os.sep):
            return None
        node = ROOT
        for part in os.path.relpath(parent, self.root).split(os.sep):
            if part == ".":
                continue
            if (node, part) not in self._names:
                self.absorb()
            if (node, part) not in self._names:
                return None
            node = self._names[node, part]
        return node, os.path.basename(path)

    def _remember(self, descriptor: int, node: int) -> None:
        found = self._os["fstat"](descriptor)
        self._descriptors[descriptor] = (node, (found.st_dev, found.st_ino))

    def _node_of(self, descriptor: int) -> int | None:
        found = self._os["fstat"](descriptor)
        node, identity = self._descriptors.get(descriptor, (None, None))
        if node is not None and identity == (found.st_dev, found.st_ino):
            return node
        where = self._os["readlink"](f"/proc/self/fd/{descriptor}")
        if where == self.root:
            return ROOT
        key = self._key(where) if where.startswith("/") else None
        return None if key is None else self._names.get(key)

    def _label(self, path: Any) -> str:
        return os.path.relpath(os.path.abspath(path), self.root)

    def _label_of(self, descriptor: int) -> str:
        return self._label(self._os["readlink"](f"/proc/self/fd/{descriptor}"))


def _absolute(path: Any, dir_fd: int | None) -> str:
    if dir_fd is None or os.path.isabs(path):
        return os.path.abspath(os.fspath(path))
    return os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), os.fspath(path))


def _joined(data: Any) -> bytes:
    return b"".join(bytes(piece) for piece in data) if isinstance(data, list | tuple) else bytes(data)
