"""A file system that can be made to hang: a FUSE server in plain Python, which shows a folder elsewhere.

It speaks the kernel's protocol on /dev/fuse itself (linux/fuse.h, 7.31) and so needs no library; root only,
in mounts of one's own. Stopped (`halt`), it leaves everybody who touches the mount waiting; with `swallow` it
takes requests and does not answer, so that not even kill -9 ends who made one; killed, the mount is dead.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import select
import signal
import stat
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from support.halting import wait_halted
from support.mounts import is_apart
from support.waiting import LONG_S, wait_until

DEVICE = Path("/dev/fuse")
WHY_NO_FUSE = "no FUSE here: it takes root and /dev/fuse (modprobe fuse; mknod /dev/fuse c 10 229)"
_MAX_WRITE = 1 << 17
_HEADER = struct.Struct("<IIQQIIIHH")
_ROOT = 1
_NO_REPLY = object()
_MS_NOSUID_NODEV = 2 | 4


def fuse_is_here() -> bool:
    """Whether this process may open the device that FUSE servers speak on."""
    try:
        os.close(os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC))
    except OSError:
        return False
    return os.geteuid() == 0


class FuseMount:
    """A folder seen through a server of its own at `place`."""

    def __init__(self, folder: Path, place: Path, *, halts_at: str = "") -> None:
        """`halts_at`: read or write, at which the server stops by itself once `arm` was called."""
        self.folder, self.place = folder, place
        folder.mkdir(parents=True, exist_ok=True)
        place.mkdir(parents=True, exist_ok=True)
        self.process = self._serve(halts_at)

    def _serve(self, halts_at: str = "") -> subprocess.Popen[bytes]:
        assert is_apart(), "a test may only mount in a namespace of its own"
        command = [sys.executable, "-m", "support.fuse", str(self.folder), str(self.place), halts_at]
        tests = str(Path(__file__).parent.parent)
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": tests}
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"mounted\n"
        return process

    def arm(self) -> None:
        """Have the server stop in the middle of the next `halts_at`: only it knows that it is there."""
        self.process.send_signal(signal.SIGHUP)

    def halt(self) -> None:
        """Answer nothing any more; who waits can still be killed."""
        self.process.send_signal(signal.SIGSTOP)

    def swallow(self) -> None:
        """Take every request and keep the answer: who waits can no longer be killed."""
        self.process.send_signal(signal.SIGUSR1)

    def go_on(self) -> None:
        """Answer again, what waited first."""
        self.process.send_signal(signal.SIGCONT)
        self.process.send_signal(signal.SIGUSR2)

    def die(self) -> None:
        """Kill the server: everything at the mount fails from now on (ENOTCONN)."""
        self.process.kill()
        self.process.wait(LONG_S)

    def come_back(self) -> None:
        """A new server in the place of the dead one."""
        subprocess.run(["umount", "--lazy", str(self.place)], check=True, timeout=LONG_S)
        self.process = self._serve()

    def end(self) -> None:
        """Take it all away, whatever state it is in."""
        self.die()
        subprocess.run(["umount", "--lazy", str(self.place)], check=False, timeout=LONG_S)

    def wait_halted(self) -> None:
        """Wait until the server has stopped, by itself or not."""
        wait_halted(self.process.pid)

    def waiting(self) -> list[int]:
        """The processes that wait for an answer now, by where in the kernel they wait."""
        found = set()
        for wchan in Path("/proc").glob("[0-9]*/task/*/wchan"):
            with contextlib.suppress(OSError):
                if wchan.read_text() == "request_wait_answer":
                    found.add(int(wchan.parts[2]))
        return sorted(found - {self.process.pid})

    def wait_for_callers(self) -> list[int]:
        """Wait until somebody hangs on the mount; who."""
        return wait_until(self.waiting, what="a process that hangs on the mount")


# The server


class _Nodes:
    """What the kernel was told of, each held by an O_PATH descriptor; freed when it forgets."""

    def __init__(self, root: Path) -> None:
        self._held: dict[int, tuple[int, tuple[int, int]]] = {}
        self._by_file: dict[tuple[int, int], int] = {}
        self._counts: dict[int, int] = {}
        self._next = _ROOT
        self.take(os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))

    def take(self, descriptor: int) -> int:
        found = os.fstat(descriptor)
        file = (found.st_dev, found.st_ino)
        if (node := self._by_file.get(file)) is None:
            node, self._next = self._next, self._next + 1
            self._held[node], self._by_file[file] = (descriptor, file), node
        else:
            os.close(descriptor)
        self._counts[node] = self._counts.get(node, 0) + 1
        return node

    def __getitem__(self, node: int) -> int:
        if node not in self._held:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return self._held[node][0]

    def path(self, node: int) -> Path:
        return Path(f"/proc/self/fd/{self[node]}")

    def forget(self, node: int, times: int) -> None:
        self._counts[node] -= times
        if self._counts[node] <= 0 and node != _ROOT:
            descriptor, file = self._held.pop(node)
            del self._by_file[file], self._counts[node]
            os.close(descriptor)


def _attributes(found: os.stat_result) -> bytes:
    times = (found.st_atime_ns, found.st_mtime_ns, found.st_ctime_ns)
    return struct.pack(
        "<QQQQQQIIIIIIIIII",
        *(found.st_ino, found.st_size, found.st_blocks),
        *(each // 10**9 for each in times),
        *(each % 10**9 for each in times),
        *(found.st_mode, found.st_nlink, found.st_uid, found.st_gid, found.st_rdev, 4096, 0),
    )


class _Server:
    """One request at a time; nothing is cached by the kernel (every validity is zero)."""

    def __init__(self, root: Path, device: int, halts_at: str) -> None:
        self.nodes, self.device = _Nodes(root), device
        self.halts_at, self.armed = {"": 0, "read": 15, "write": 16}[halts_at], False
        self.held: list[tuple[int, bytes]] | None = None  # answers kept back
        self.wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        for signum in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
            signal.signal(signum, lambda *_: None)  # the loop sees them in the order they came
        self._answers: dict[int, Callable[[int, bytes], object]] = {
            **{1: self.lookup, 2: self.forget, 3: self.getattr, 4: self.setattr, 9: self.mkdir},
            **{10: self.unlink, 11: self.rmdir, 12: self.rename, 13: self.link, 14: self.open},
            **{15: self.read, 16: self.write, 17: self.statfs, 18: self.release, 20: self.fsync},
            **{25: self.flush, 26: self.init, 27: self.open, 28: self.readdir, 29: self.release},
            **{30: self.fsync, 34: self.access, 35: self.create, 36: self.silent, 38: self.flush},
            **{42: self.batch_forget, 45: self.rename2},
        }

    def _signalled(self) -> None:
        for signum in os.read(self.wake_read, 512):
            if signum == signal.SIGHUP:
                self.armed = True
            elif signum == signal.SIGUSR1:
                self.held = [] if self.held is None else self.held
            elif self.held is not None:
                held, self.held = self.held, None
                for unique, answer in held:
                    self._send(unique, 0, answer)

    def run(self) -> None:
        poller = select.poll()
        poller.register(self.device, select.POLLIN)
        poller.register(self.wake_read, select.POLLIN)
        while True:
            ready = dict(poller.poll())
            if self.wake_read in ready:
                self._signalled()
            if self.device in ready:
                try:
                    request = os.read(self.device, _MAX_WRITE + 4096)
                except OSError as error:
                    if error.errno == errno.ENODEV:  # unmounted
                        return
                    if error.errno in (errno.ENOENT, errno.EINTR, errno.EAGAIN):
                        continue
                    raise
                self._take(request)

    def _take(self, request: bytes) -> None:
        length, opcode, unique, node, *_ = _HEADER.unpack_from(request)
        if self.armed and opcode == self.halts_at:
            self.armed = False
            os.kill(os.getpid(), signal.SIGSTOP)
        act = self._answers.get(opcode)
        failure, answer = 0, b""
        try:
            found = self.unknown(node, b"") if act is None else act(node, request[_HEADER.size : length])
            if found is _NO_REPLY:
                return
            assert isinstance(found, bytes)
            answer = found
        except OSError as error:
            failure = error.errno or errno.EIO
        if self.held is not None and not failure:
            self.held.append((unique, answer))
        else:
            self._send(unique, failure, answer)
        if opcode == 26:
            print("mounted", flush=True)

    def _send(self, unique: int, failure: int, answer: bytes) -> None:
        with contextlib.suppress(FileNotFoundError):  # who asked was killed meanwhile
            head = struct.pack("<IiQ", 16 + len(answer), -failure, unique)
            os.write(self.device, head + answer)

    def unknown(self, _node: int, _body: bytes) -> bytes:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    def silent(self, _node: int, _body: bytes) -> object:
        return _NO_REPLY

    def init(self, _node: int, body: bytes) -> bytes:
        readahead = struct.unpack_from("<III", body)[2]
        flags = 1 << 0 | 1 << 5 | 1 << 22  # reads at a time, big writes, max_pages counts
        pages = _MAX_WRITE // 4096
        return struct.pack("<IIIIHHIIHHI28x", 7, 31, readahead, flags, 16, 12, _MAX_WRITE, 1, pages, 0, 0)

    # Names

    def _entry(self, node: int) -> bytes:
        return struct.pack("<QQQQII", node, 0, 0, 0, 0, 0) + _attributes(os.fstat(self.nodes[node]))

    def lookup(self, node: int, body: bytes) -> bytes:
        name = body[: body.index(0)]
        flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
        return self._entry(self.nodes.take(os.open(name, flags, dir_fd=self.nodes[node])))

    def forget(self, node: int, body: bytes) -> object:
        self.nodes.forget(node, struct.unpack_from("<Q", body)[0])
        return _NO_REPLY

    def batch_forget(self, _node: int, body: bytes) -> object:
        for number in range(struct.unpack_from("<I", body)[0]):
            self.nodes.forget(*struct.unpack_from("<QQ", body, 8 + 16 * number))
        return _NO_REPLY

    def mkdir(self, node: int, body: bytes) -> bytes:
        mode, umask = struct.unpack_from("<II", body)
        os.mkdir(body[8 : body.index(0, 8)], mode & ~umask, dir_fd=self.nodes[node])
        return self.lookup(node, body[8:])

    def unlink(self, node: int, body: bytes) -> bytes:
        os.unlink(body[:-1], dir_fd=self.nodes[node])
        return b""

    def rmdir(self, node: int, body: bytes) -> bytes:
        os.rmdir(body[:-1], dir_fd=self.nodes[node])
        return b""

    def _rename(self, node: int, target: int, names: bytes) -> bytes:
        old, new, _ = names.split(b"\0", 2)
        os.rename(old, new, src_dir_fd=self.nodes[node], dst_dir_fd=self.nodes[target])
        return b""

    def rename(self, node: int, body: bytes) -> bytes:
        return self._rename(node, struct.unpack_from("<Q", body)[0], body[8:])

    def rename2(self, node: int, body: bytes) -> bytes:
        target, flags = struct.unpack_from("<QI", body)
        if flags:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return self._rename(node, target, body[16:])

    def link(self, node: int, body: bytes) -> bytes:
        source = self.nodes.path(struct.unpack_from("<Q", body)[0])
        os.link(source, body[8:-1], dst_dir_fd=self.nodes[node], follow_symlinks=True)
        return self.lookup(node, body[8:])

    # Attributes

    def getattr(self, node: int, _body: bytes) -> bytes:
        return struct.pack("<QII", 0, 0, 0) + _attributes(os.fstat(self.nodes[node]))

    def setattr(self, node: int, body: bytes) -> bytes:
        fields = struct.unpack_from("<IIQQQQQQIIIIIIII", body)
        valid, size, atime, mtime = fields[0], fields[3], fields[5], fields[6]
        path = self.nodes.path(node)
        if valid & 1:
            path.chmod(stat.S_IMODE(fields[11]))
        if valid & 8:
            os.truncate(path, size)
        if valid & 0x30:
            now = path.stat()
            at = atime * 10**9 + fields[8] if valid & 0x10 else now.st_atime_ns
            mt = mtime * 10**9 + fields[9] if valid & 0x20 else now.st_mtime_ns
            os.utime(path, ns=(at, mt))
        return self.getattr(node, b"")

    def access(self, _node: int, _body: bytes) -> bytes:
        return b""

    def statfs(self, _node: int, _body: bytes) -> bytes:
        found = os.fstatvfs(self.nodes[_ROOT])
        counts = (found.f_blocks, found.f_bfree, found.f_bavail, found.f_files, found.f_ffree)
        return struct.pack("<QQQQQIIII24x", *counts, found.f_bsize, found.f_namemax, found.f_frsize, 0)

    # Open files: the handle is a descriptor

    def open(self, node: int, body: bytes) -> bytes:
        flags = struct.unpack_from("<I", body)[0] & (os.O_ACCMODE | os.O_TRUNC | os.O_DIRECTORY)
        return struct.pack("<QII", os.open(self.nodes.path(node), flags | os.O_CLOEXEC), 0, 0)

    def create(self, node: int, body: bytes) -> bytes:
        flags, mode, umask, _ = struct.unpack_from("<IIII", body)
        flags = flags & (os.O_ACCMODE | os.O_TRUNC | os.O_EXCL) | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        handle = os.open(body[16:-1], flags, mode & ~umask, dir_fd=self.nodes[node])
        return self.lookup(node, body[16:]) + struct.pack("<QII", handle, 0, 0)

    def read(self, _node: int, body: bytes) -> bytes:
        handle, offset, size = struct.unpack_from("<QQI", body)
        return os.pread(handle, size, offset)

    def write(self, _node: int, body: bytes) -> bytes:
        handle, offset, size = struct.unpack_from("<QQI", body)
        return struct.pack("<II", os.pwrite(handle, body[40 : 40 + size], offset), 0)

    def flush(self, _node: int, _body: bytes) -> bytes:
        return b""

    def fsync(self, _node: int, body: bytes) -> bytes:
        os.fsync(struct.unpack_from("<Q", body)[0])
        return b""

    def release(self, _node: int, body: bytes) -> bytes:
        os.close(struct.unpack_from("<Q", body)[0])
        return b""

    def readdir(self, node: int, body: bytes) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", body)
        with os.scandir(self.nodes.path(node)) as found:
            entries = sorted(found, key=lambda entry: entry.name)
        out = b""
        for number, entry in list(enumerate(entries, 1))[offset:]:
            word = os.fsencode(entry.name)
            kind = (stat.S_IFDIR if entry.is_dir(follow_symlinks=False) else stat.S_IFREG) >> 12
            piece = struct.pack("<QQII", entry.inode(), number, len(word), kind) + word
            piece += bytes(-len(piece) % 8)
            if len(out) + len(piece) > size:
                break
            out += piece
        return out


def main(folder: Path, place: Path, halts_at: str) -> None:
    """Mount and serve until unmounted."""
    device = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions"
    words = (b"stoker-test", os.fsencode(place), b"fuse", _MS_NOSUID_NODEV, options.encode())
    if libc.mount(*words):
        raise OSError(ctypes.get_errno(), f"mount {place}: {os.strerror(ctypes.get_errno())}")
    _Server(folder, device, halts_at).run()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
