"""The drop-ins of the units: what they say for a file, and what has changed in one."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType

import pytest

from stoker.store.layout import DAEMONS, DOWNLOAD_WATCHDOG, STAGE_SHARD, TRAIN_SUPERVISOR
from stoker.systemd.drop_ins import differences, drop_in, is_edited, opened
from stoker.systemd.units import Account, users_manager
from support.config_files import MINIMAL, load_text

DATA = MINIMAL.replace("state: state\nhot: hot", "state: /s\nhot: /h")
HUB = DATA.replace("{kind: folder, path: parquet}", "{kind: hub, repo: a/b}")
OWN = "name: mine\nstate: /s\ntrain: {command: [python, t.py], external: {directory: /code/own}}\n"
ALICE = Account("alice", "people", Path("/home/alice"))
SHIPPED = Account("stoker", "stoker", Path("/var/lib/stoker"))


def said(text: str) -> dict[str, list[str]]:
    """The values of each key."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if not line.startswith(("#", "[")):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


def drop_in_of(
    home: Path, text: str = DATA, daemon: str = TRAIN_SUPERVISOR, account: Account | None = None
) -> dict[str, list[str]]:
    return said(drop_in(load_text(home, text), daemon, account))


def test_every_daemon_may_write_the_pipelines_directories_alone_and_needs_their_mounts(
    tmp_path: Path,
) -> None:
    for daemon in DAEMONS:
        found = drop_in_of(tmp_path, DATA + "warm: /w\n", daemon)
        assert found["ReadWritePaths"] == ["-/s -/h -/w"]
        assert found["RequiresMountsFor"] == ["/s /h"], "warm may be away"
        assert found["After"] == ["remote-fs.target"]
        assert found["EnvironmentFile"] == ["-/etc/stoker/mine.env"]
        assert ("TimeoutStopSec" in found) == (daemon == TRAIN_SUPERVISOR)
        assert found.keys().isdisjoint({"User", "LoadCredential", "PrivateTmp", "Environment"})


def test_the_stop_time_of_the_file_and_a_margin_is_the_units(tmp_path: Path) -> None:
    found = drop_in_of(tmp_path, DATA + "supervise: {stop_time: 20m}\n")
    assert (found["TimeoutStopSec"], found["TimeoutAbortSec"]) == (["1260"], ["1260"])


@pytest.mark.parametrize(
    ("source", "place"),
    [("repo: a/b", "/etc/stoker/hub-token"), ("repo: a/b, token_file: /k/my token", "/k/my token")],
)
def test_the_download_watchdog_alone_gets_the_hubs_token(tmp_path: Path, source: str, place: str) -> None:
    text = HUB.replace("repo: a/b", source)
    found = drop_in_of(tmp_path, text, DOWNLOAD_WATCHDOG)
    assert found["LoadCredential"] == [f"hub-token:{place}"]
    assert found["SetCredential"] == ["hub-token:-"]
    for other in (STAGE_SHARD, TRAIN_SUPERVISOR):
        assert "LoadCredential" not in drop_in_of(tmp_path, text, other)


@pytest.mark.parametrize(
    ("account", "user", "trainers"),
    [
        (None, {}, {"Environment": ["HOME=/s"], "ReadWritePaths": ["-/s", "-/code/own"]}),
        (SHIPPED, {}, {"Environment": ["HOME=/s"], "ReadWritePaths": ["-/s", "-/code/own"]}),
        (
            ALICE,
            {"User": ["alice"], "Group": ["people"]},
            {"ReadWritePaths": ["-/s", "-/code/own", "-/home/alice"]},
        ),
    ],
)
def test_a_trainer_of_ones_own_writes_its_directory_and_a_home(
    tmp_path: Path, account: Account | None, user: dict[str, list[str]], trainers: dict[str, list[str]]
) -> None:
    found = drop_in_of(tmp_path, OWN, account=account)
    assert {key: found.get(key) for key in {**user, **trainers}} == {**user, **trainers}
    assert found.get("User") == user.get("User")
    assert "PrivateTmp" not in found
    assert drop_in_of(tmp_path, OWN.replace("/code/own", "/tmp/own"))["PrivateTmp"] == ["no"]
    assert drop_in_of(tmp_path, account=account).get("Environment") is None, "the built-in trainer needs none"


@pytest.mark.parametrize(
    ("glob", "place"),
    [("/data/run*/step-*/m.pt", "/data"), ("/data/ck/model.pt", "/data/ck"), ("out/*.pt", None)],
)
def test_where_a_whole_glob_of_checkpoints_begins_is_opened(
    tmp_path: Path, glob: str, place: str | None
) -> None:
    found = drop_in_of(tmp_path, OWN.replace("/code/own", f"/code/own, checkpoints: '{glob}'"))
    assert found["ReadWritePaths"] == ["-/s", f"-/code/own -{place}" if place else "-/code/own"]


def test_a_trainers_directory_that_is_not_named_is_not_opened(tmp_path: Path) -> None:
    found = drop_in_of(tmp_path, "name: mine\nstate: /s\ntrain: {command: [python, t.py]}\n")
    assert found["ReadWritePaths"] == ["-/s"]


def test_a_path_with_a_space_a_quote_or_a_percent_sign_stays_one_path(tmp_path: Path) -> None:
    found = drop_in_of(tmp_path, DATA.replace("hot: /h", "hot: '/my \"disk\"\\1/100%'"))
    assert found["ReadWritePaths"] == ['-/s "-/my \\"disk\\"\\\\1/100%%"']


def test_a_persons_own_units_have_no_account_and_no_sandbox(tmp_path: Path) -> None:
    manager = users_manager({"XDG_CONFIG_HOME": "/home/alice/.config"})
    text = drop_in(load_text(tmp_path, OWN), TRAIN_SUPERVISOR, ALICE, manager)
    assert said(text).keys() == {"EnvironmentFile", "TimeoutStopSec", "TimeoutAbortSec"}
    assert said(text)["EnvironmentFile"] == ["-/home/alice/.config/stoker/mine.env"]
    where = Path("/home/alice/.config/systemd/user/stoker-stage-shard@mine.service.d/50-stoker.conf")
    assert manager.drop_in(STAGE_SHARD, "mine") == where


@pytest.mark.parametrize(
    ("change", "is_changed"),
    [
        (MappingProxyType({}), False),
        (MappingProxyType({"360": "36"}), True),
        (MappingProxyType({"# Proxies": "# Our proxies"}), True),
        (MappingProxyType({"# sha256": "# md5"}), True),
    ],
)
def test_an_edited_drop_in_is_known_by_its_digest(
    tmp_path: Path, change: MappingProxyType[str, str], is_changed: bool
) -> None:
    text = drop_in(load_text(tmp_path, DATA), TRAIN_SUPERVISOR, None)
    for old, new in change.items():
        assert old in text
        text = text.replace(old, new)
    assert is_edited(text) == is_changed


def test_the_lines_that_differ_are_told_and_comments_are_not_compared(tmp_path: Path) -> None:
    before = drop_in(load_text(tmp_path, DATA), TRAIN_SUPERVISOR, None)
    after = drop_in(load_text(tmp_path, DATA + "supervise: {stop_time: 10m}\n"), TRAIN_SUPERVISOR, None)
    lines = differences(before.replace("# Proxies", "# Ours"), after)
    assert lines == [
        "-TimeoutStopSec=360",
        "-TimeoutAbortSec=360",
        "+TimeoutStopSec=660",
        "+TimeoutAbortSec=660",
    ]
    assert differences(before + "\n# mine\n", before) == []


@pytest.mark.parametrize(
    ("warm", "mounts", "found"),
    [
        ("/mnt/nas/x", ("/", "/mnt/nas"), "-/mnt/nas"),
        ("/mnt/nas/x", ("/", "/mnt/nas", "/mnt/nas/x"), "-/mnt/nas/x"),
        ("/mnt/nas/x", ("/", "/var"), "-/mnt/nas/x"),
        ("/home/stoker/warm", ("/", "/home"), "-/home/stoker/warm"),
        ("/my disks/100%/x", ("/", "/my disks/100%"), '"-/my disks/100%%"'),
    ],
)
def test_a_disks_mount_point_is_opened_so_that_it_is_seen_when_it_is_mounted_anew(
    tmp_path: Path, warm: str, mounts: tuple[str, ...], found: str
) -> None:
    pipeline = load_text(tmp_path, f"{DATA}warm: '{warm}'\n")
    text = drop_in(pipeline, STAGE_SHARD, None, mounts=set(map(Path, mounts)))
    assert said(text)["ReadWritePaths"] == [f"-/s -/h {found}"]
    assert drop_in(pipeline, STAGE_SHARD, None, mounts=opened(text)) == text, "also where it is away now"


def test_a_line_that_is_no_list_of_paths_opens_none() -> None:
    assert opened("ReadWritePaths='-/a") == set()
