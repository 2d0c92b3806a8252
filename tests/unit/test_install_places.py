"""Where an installation lays what deploy/ holds, and who works from an environment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from stoker.config.load import deploy_dir
from stoker.install.environment import users_of
from stoker.install.places import Places

NOT_LAID = {"stoker.sysctl"}


def laid(is_user: bool) -> dict[Path, bytes]:
    files = Places(Path("/"), is_user, "/srv/elsewhere").files(deploy_dir())
    return {Path(path): data for path, data in files}


@pytest.mark.parametrize("is_user", [False, True])
def test_each_unit_is_laid_once_and_names_the_prefix(is_user: bool) -> None:
    systemd = deploy_dir() / "systemd"
    units = systemd / "user" if is_user else systemd
    kinds = {path.name for path in units.rglob("*") if path.is_file()} - NOT_LAID
    wanted = {name for name in kinds if not name.startswith("stoker.") or name == "stoker.slice"}
    files = laid(is_user)
    place = Path.home() / ".local/share/systemd/user" if is_user else Path("/usr/local/lib/systemd/system")
    assert {path.name for path in files if place in path.parents} == wanted
    for path, data in files.items():
        assert b"/opt/stoker" not in data, path
        assert b"%h/.local/share/stoker" not in data, path
    assert b"ExecStart=/srv/elsewhere/current/bin/" in files[place / "stoker-stage-shard@.service"]


def test_the_rest_of_the_machines_files_lie_where_systemd_and_shells_look() -> None:
    units = Path("/usr/local/lib/systemd/system")
    assert sorted(str(path) for path in laid(is_user=False) if units not in path.parents) == [
        "/usr/local/lib/systemd/catalog/stoker.catalog",
        "/usr/local/lib/systemd/system-preset/50-stoker.preset",
        "/usr/local/lib/sysusers.d/stoker.conf",
        "/usr/local/lib/tmpfiles.d/stoker.conf",
        "/usr/local/share/bash-completion/completions/stoker",
        "/usr/local/share/fish/vendor_completions.d/stoker.fish",
        "/usr/local/share/zsh/site-functions/_stoker",
    ]


def test_where_the_prefix_is_a_link_a_process_is_found_by_what_it_has_mapped(tmp_path: Path) -> None:
    place, link = tmp_path / "disk/0.1.0-00000000", tmp_path / "prefix"
    place.mkdir(parents=True)
    (place / "lib").write_text("mapped")
    link.symlink_to("disk")
    maps = """import mmap, sys
with open("lib") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ):
    print(flush=True)
    sys.stdin.read()"""
    with subprocess.Popen(
        [sys.executable, "-c", maps], cwd=place, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert users_of(link / place.name) == [child.pid]
