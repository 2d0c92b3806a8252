"""A throw-away copy of this machine under a real systemd, in namespaces, for tests that run as root.

The copy is an overlay of ``/`` on a tmpfs in fresh pid, mount, uts, ipc, cgroup and network namespaces.
Nothing it writes reaches the host: ``/tmp``, ``/run`` and ``/dev/shm`` are private, so tidying up at boot
cannot wipe the host's. What must be seen from the host is bound in by name.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

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
echo $$ > {cgroup}/cgroup.procs
mount --make-rprivate /
mount -t tmpfs -o mode=755,size=4g box {lab}
mkdir -p {lab}/root {lab}/up {lab}/work
mount -t overlay overlay -o lowerdir=/,upperdir={lab}/up,workdir={lab}/work {root}
mkdir -p {root}/run {root}/tmp {root}/sys {root}/proc {root}/dev
rm -rf {root}/var/log/journal
mount -t proc proc {root}/proc
mount -t sysfs -o ro sysfs {root}/sys
mount --rbind /dev {root}/dev
mount -t tmpfs -o mode=1777 shm {root}/dev/shm
mount --bind /dev/null {root}/dev/kmsg
mount -t tmpfs -o mode=755 run {root}/run
mount -t tmpfs -o mode=1777 tmp {root}/tmp
mkdir -p {root}/run/lock
rm -rf {root}/etc/systemd/system/*.wants
for unit in {masked}; do ln -sfn /dev/null {root}/etc/systemd/system/$unit; done
: > {root}/etc/fstab
hostname {name}
{binds}
ip link set lo up
mount --make-rshared {root}
exec unshare --cgroup bash -c {inner}
"""

INNER = r"""
set -euo pipefail
mount -t cgroup2 cgroup2 {root}/sys/fs/cgroup
exec env -i container=box PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
  chroot {root} /lib/systemd/systemd --system --unit=multi-user.target --show-status=no
"""

ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "SYSTEMD_PAGER": "",
    "SYSTEMD_COLORS": "0",
    "LANG": "C.UTF-8",
    "HOME": "/root",
}


def _cgroup2() -> Path | None:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, right = line.split(" - ", 1)
        if right.split()[0] == "cgroup2":
            return Path(left.split()[4])
    return None


def missing() -> str | None:
    """Why a box cannot be had on this machine, or None."""
    if os.geteuid() != 0:
        return "needs root"
    for tool in ("unshare", "nsenter", "ip", "systemctl"):
        if shutil.which(tool) is None:
            return f"needs {tool}"
    if not Path("/lib/systemd/systemd").exists():
        return "needs systemd installed"
    if _cgroup2() is None:
        return "needs a cgroup2 mount"
    probe = subprocess.run(
        ["unshare", "--fork", "--pid", "--mount", "--uts", "--ipc", "--net", "true"],
        capture_output=True,
        check=False,
    )
    return None if probe.returncode == 0 else f"cannot make namespaces: {probe.stderr.decode().strip()}"


class Box:
    """Start it with ``with``; run commands inside with `run`; it is gone, whatever happened, afterwards."""

    def __init__(self, name: str, binds: Sequence[tuple[Path, str]] = ()) -> None:
        self.name = name
        self.binds = binds
        self.lab = Path(tempfile.mkdtemp(prefix=f"box-{name}-", dir="/var/tmp"))
        self.pid = 0
        mounted = _cgroup2()
        assert mounted is not None
        self.cgroup = mounted / f"box-{self.lab.name}"

    def __enter__(self) -> Box:
        self.cgroup.mkdir()
        root = self.lab / "root"
        binds = "\n".join(
            f"mkdir -p {root}{target}; mount --bind {shlex.quote(str(source))} {root}{target}"
            for source, target in self.binds
        )
        script = BOOT.format(
            cgroup=self.cgroup, lab=self.lab, root=root, name=self.name, binds=binds,
            masked=" ".join(MASKED), inner=shlex.quote(INNER.format(root=root)),
        )  # fmt: skip
        flags = ["--fork", "--pid", "--mount", "--uts", "--ipc", "--net", "--kill-child"]
        self.log = (self.lab.parent / f"{self.lab.name}.log").open("wb")
        self.outer = subprocess.Popen(
            ["unshare", *flags, "bash", "-c", script],
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, start_new_session=True,
        )  # fmt: skip
        try:
            wait_until(self._booted, 60, "the box's systemd")
        except BaseException:
            self.__exit__()
            raise
        return self

    def _booted(self) -> bool:
        if self.outer.poll() is not None:
            raise AssertionError(f"the box did not boot: {Path(self.log.name).read_text(errors='replace')}")
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
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)  # the namespace's init: the kernel ends everything in it
        else:
            self.outer.kill()
        self.outer.wait(30)
        self.log.close()
        Path(self.log.name).unlink()
        for folder, _, _ in os.walk(self.cgroup, topdown=False):
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

    def write(self, inside: str, text: str) -> None:
        path = Path(f"/proc/{self.pid}/root{inside}")
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
