"""A throw-away copy of this machine under a real systemd, in namespaces, for tests that run as root.

The copy is an overlay of ``/`` on a tmpfs in fresh pid, mount, uts, ipc, cgroup and network namespaces.
Nothing it writes reaches the host: ``/tmp``, ``/run`` and ``/dev/shm`` are private, so tidying up at boot
cannot wipe the host's. What must be seen from the host is bound in by name.

A box can be booted again after a `power_cut`, and finds what was written before. A `hybrid` box has the
host's controllers of control groups version 1 (a limit of memory works there); another one only tracks
processes.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support.waiting import wait_until

# Units that make no sense in a namespace on a shared kernel.
MASKED = """
    systemd-networkd.service systemd-networkd.socket systemd-networkd-wait-online.service
    systemd-resolved.service systemd-timesyncd.service systemd-logind.service
    systemd-udevd.service systemd-udevd-control.socket systemd-udevd-kernel.socket
    systemd-udev-trigger.service systemd-modules-load.service systemd-sysctl.service
    systemd-remount-fs.service systemd-binfmt.service systemd-pstore.service
    systemd-random-seed.service systemd-update-utmp.service
    getty.target console-getty.service getty-static.service cron.service ssh.service docker.service
    apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer fstrim.timer dpkg-db-backup.timer
    proc-sys-fs-binfmt_misc.automount dev-hugepages.mount dev-mqueue.mount
    sys-kernel-debug.mount sys-kernel-tracing.mount sys-fs-fuse-connections.mount
""".split()  # noqa: SIM905

BOOT = r"""
set -euo pipefail
for group in {cgroups}; do echo $$ > $group/cgroup.procs; done
mount --make-rprivate /
mkdir -p {root} {lab}/up {lab}/work
mount -t overlay overlay -o lowerdir=/,upperdir={lab}/up,workdir={lab}/work {root}
mkdir -p {root}/run {root}/tmp {root}/sys {root}/proc {root}/dev
{fresh}
mount -t proc proc {root}/proc
mount -t sysfs -o ro sysfs {root}/sys
mount --rbind /dev {root}/dev
mount -t tmpfs -o mode=1777 shm {root}/dev/shm
mount --bind /dev/null {root}/dev/kmsg
mount -t tmpfs -o mode=755 run {root}/run
mount -t tmpfs -o mode=1777 tmp {root}/tmp
mkdir -p {root}/run/lock
for unit in {masked}; do ln -sfn /dev/null {root}/etc/systemd/system/$unit; done
: > {root}/etc/fstab
hostname {name}
{binds}
ip link set lo up
mount --make-rshared {root}
exec unshare --cgroup bash -c {inner}
"""

# Whatever the host has enabled stays off in the box; what the box enables outlives a power cut.
FRESH = "rm -rf {root}/var/log/journal {root}/etc/systemd/system/*.wants"

# In memory, because the upper side of an overlay can be no overlay, which / often is in CI; and fsync is
# free. Mounted apart from the box, to outlive a power cut, until its standard input is closed.
DISK = "mount -t tmpfs -o mode=755,size=4g box {lab} && echo mounted && exec cat"

INNER = r"""
set -euo pipefail
groups={root}/sys/fs/cgroup
{hierarchy}
exec env -i container=box PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
  chroot {root} /lib/systemd/systemd --system --unit=multi-user.target --show-status=no
"""

HIERARCHY = "mount -t cgroup2 cgroup2 $groups"
HYBRID = r"""
mount -t tmpfs -o mode=755 cgroup $groups
mkdir $groups/unified $groups/systemd
mount -t cgroup2 cgroup2 $groups/unified
mount -t cgroup -o none,name=systemd cgroup $groups/systemd
for one in {controllers}; do mkdir $groups/$one; mount -t cgroup -o $one cgroup $groups/$one; done
"""
CONTROLLERS = ("memory", "pids", "cpu", "cpuacct", "blkio")
OF_SYSTEMD = "name=systemd"

ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "SYSTEMD_PAGER": "",
    "SYSTEMD_COLORS": "0",
    "LANG": "C.UTF-8",
    "HOME": "/root",
}


def _cgroup_mounts() -> dict[str, Path]:
    """Returns where each control group hierarchy is mounted: `cgroup2`, and the names of version 1."""
    found: dict[str, Path] = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, right = line.split(" - ", 1)
        kind, _, options = right.split(maxsplit=2)
        names = ["cgroup2"] if kind == "cgroup2" else options.split(",") if kind == "cgroup" else []
        for name in names:
            found.setdefault(name, Path(left.split()[4]))
    return found


def missing() -> str | None:
    """Why a box cannot be had on this machine, or None."""
    if os.geteuid() != 0:
        return "needs root"
    for tool in ("unshare", "nsenter", "ip", "systemctl"):
        if shutil.which(tool) is None:
            return f"needs {tool}"
    if not Path("/lib/systemd/systemd").exists():
        return "needs systemd installed"
    if "cgroup2" not in _cgroup_mounts():
        return "needs a cgroup2 mount"
    for hidden in ("/tmp", "/var/tmp"):  # by PrivateTmp
        if Path(sys.prefix).is_relative_to(hidden):
            return f"needs a checkout elsewhere than in {hidden}, which the units do not see: {sys.prefix}"
    probe = subprocess.run(
        ["unshare", "--fork", "--pid", "--mount", "--uts", "--ipc", "--net", "true"],
        capture_output=True,
        check=False,
    )
    return None if probe.returncode == 0 else f"cannot make namespaces: {probe.stderr.decode().strip()}"


def missing_hybrid() -> str | None:
    """Why a hybrid box cannot be had on this machine, or None."""
    lacking = {OF_SYSTEMD, "memory"} - _cgroup_mounts().keys()
    return f"needs version 1 of control groups: {', '.join(sorted(lacking))}" if lacking else missing()


class Box:
    """Start it with ``with``; run commands inside with `run`; it is gone, whatever happened, afterwards."""

    def __init__(
        self,
        name: str,
        binds: Sequence[tuple[Path, str]] = (),
        *,
        hybrid: bool = False,
    ) -> None:
        self.name, self.binds = name, binds
        self.lab = Path(tempfile.mkdtemp(prefix=f"box-{name}-", dir="/var/tmp"))
        self.pid = self._boots = 0
        mounted = _cgroup_mounts()
        self._controllers = [one for one in CONTROLLERS if one in mounted] if hybrid else []
        used = ["cgroup2", *([OF_SYSTEMD, *self._controllers] if hybrid else [])]
        self._cgroups = [mounted[one] / f"box-{self.lab.name}" for one in used]
        self._disk = subprocess.Popen(
            ["unshare", "--mount", "--propagation=private", "sh", "-c", DISK.format(lab=self.lab)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        assert self._disk.stdout is not None
        assert self._disk.stdout.readline(), "the box's disk is not mounted"

    def __enter__(self) -> Box:
        try:
            return self.boot()
        except BaseException:
            self.__exit__()
            raise

    def boot(self) -> Box:
        """Starts the box: the first time as a copy of this machine, after a power cut as it was left."""
        for cgroup in self._cgroups:
            cgroup.mkdir(exist_ok=True)
            if (shares := cgroup / "cpu.shares").exists():
                shares.write_text("8192")  # or a whole machine gets no more than one process beside it
        root = self.lab / "root"
        binds = "\n".join(
            f"mkdir -p {root}{target}; mount --bind {shlex.quote(str(source))} {root}{target}"
            for source, target in self.binds
        )
        hybrid = HYBRID.format(controllers=" ".join(self._controllers))
        inner = INNER.format(root=root, hierarchy=hybrid if self._controllers else HIERARCHY)
        script = BOOT.format(
            cgroups=shlex.join(map(str, self._cgroups)), lab=self.lab, root=root, name=self.name,
            fresh=":" if self._boots else FRESH.format(root=root), binds=binds,
            masked=" ".join(MASKED), inner=shlex.quote(inner),
        )  # fmt: skip
        self._boots += 1
        flags = ["--fork", "--pid", "--mount", "--uts", "--ipc", "--net", "--kill-child"]
        with (self.lab / "boot.log").open("wb") as log:
            self.outer = subprocess.Popen(
                [
                    *("nsenter", f"--target={self._disk.pid}", "--mount", "--root"),
                    *("unshare", *flags, "bash", "-c", script),
                ],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        wait_until(self._booted, 60, "the box's systemd")
        return self

    def power_cut(self) -> None:
        """Ends every process of the box at once; `boot` starts it again, with the disk that it kept."""
        if self.pid and self.outer.poll() is None:
            os.kill(self.pid, signal.SIGKILL)  # the namespace's init: the kernel ends everything in it
        else:
            self.outer.kill()
        self.outer.wait(30)
        self.pid = 0

    def _booted(self) -> bool:
        if self.outer.poll() is not None:
            raise AssertionError(
                f"the box did not boot: {(self.lab / 'boot.log').read_text(errors='replace')}"
            )
        children = Path(f"/proc/{self.outer.pid}/task/{self.outer.pid}/children").read_text().split()
        if not children:
            return False
        self.pid = int(children[0])
        try:
            if Path(f"/proc/{self.pid}/exe").readlink().name != "systemd":
                return False
        except OSError:
            return False
        state = self.run("systemctl", "is-system-running", "--wait", check=False).stdout.strip()
        return state in ("running", "degraded")

    def __exit__(self, *exc: object) -> None:
        self.power_cut()
        self._disk.communicate()
        for cgroup in self._cgroups:
            for folder, _, _ in os.walk(cgroup, topdown=False):
                wait_until(lambda folder=folder: _rmdir(folder), what="the box's control group to empty")
        shutil.rmtree(self.lab, ignore_errors=True)

    def run(
        self, *command: str, check: bool = True, timeout_s: float = 120
    ) -> subprocess.CompletedProcess[str]:
        namespaces = ["-m", "-p", "-u", "-i", "-C", "-n", "-r", "-w"]
        done = subprocess.run(
            ["nsenter", "-t", str(self.pid), *namespaces, *command],
            text=True, capture_output=True, timeout=timeout_s, env=ENVIRONMENT, check=False,
        )  # fmt: skip
        if check:
            assert done.returncode == 0, (
                f"{shlex.join(command)}: {done.returncode}\n{done.stdout}{done.stderr}"
            )
        return done

    def show(self, unit: str, name: str) -> str:
        return self.run("systemctl", "show", "-P", name, unit).stdout.strip()

    def journal(self, unit: str, *options: str) -> str:
        self.run("journalctl", "--sync", check=False)
        return self.run("journalctl", "--no-pager", "-o", "cat", "-u", unit, *options, check=False).stdout

    def journal_json(self, unit: str, *options: str) -> list[dict[str, Any]]:
        """Returns the unit's journal entries with all their fields."""
        return [json.loads(line) for line in self.journal(unit, "-o", "json", *options).splitlines()]

    def path(self, inside: str) -> Path:
        """Returns where a file of the box is seen from outside."""
        return Path(f"/proc/{self.pid}/root{inside}")

    def write(self, inside: str, text: str) -> None:
        path = self.path(inside)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def _rmdir(folder: str) -> bool:
    try:
        Path(folder).rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
