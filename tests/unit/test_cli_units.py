"""`stoker units`: prints, writes and compares the drop-ins, and keeps what somebody has edited."""

from __future__ import annotations

import os
import pwd
import shutil
from pathlib import Path

import pytest

from stoker.cli.main import exit_code
from stoker.cli.pipeline.exposure import exposure
from stoker.cli.pipeline.units import BESIDE
from stoker.config.load import load_pipeline
from stoker.corpus.http.hub import hub_token
from stoker.store.layout import DAEMONS, STAGE_SHARD, TRAIN_SUPERVISOR
from stoker.systemd.credentials import secret_file_flaw
from stoker.systemd.drop_ins import drop_in
from stoker.systemd.units import SYSTEM, account_of, manager_of_unit, users_manager
from support.config_files import MINIMAL, write_pipeline

UNITS = Path(__file__).parents[2] / "deploy" / "systemd"
OWN = "name: mine\nstate: state\ntrain: {command: [python, t.py], external: {directory: own}}\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with a pipeline where the units look for it."""
    file = tmp_path / "etc/stoker/mine.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(MINIMAL)
    return tmp_path


def units(root: Path, *options: str) -> int:
    return exit_code(["units", str(root / "etc/stoker/mine.yaml"), "--root", str(root), *options])


def written(root: Path) -> dict[str, Path]:
    of = (*DAEMONS, *BESIDE)
    return {daemon: root / SYSTEM.drop_in(daemon, "mine").relative_to("/") for daemon in of}


def test_without_a_flag_the_drop_ins_are_printed_and_nothing_is_written(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert units(root) == 0
    shown = capsys.readouterr().out
    pipeline = load_pipeline(root / "etc/stoker/mine.yaml")
    for daemon, path in written(root).items():
        assert f"# {path}\n{drop_in(pipeline, daemon, account_of(pipeline.state))}" in shown
        assert not path.exists()


def test_what_differs_is_written_and_nothing_else_and_a_check_finds_nothing_then(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert units(root, "--check") == 1
    assert "stoker-stage-shard@mine.service.d/50-stoker.conf is missing" in capsys.readouterr().out
    assert units(root, "--write") == 0
    assert units(root, "--check") == 0
    stamps = {path: path.stat().st_ino for path in written(root).values()}
    file = root / "etc/stoker/mine.yaml"
    file.write_text(MINIMAL + "supervise: {stop_time: 10m}\n")

    capsys.readouterr()
    assert units(root, "--check") == 1
    assert "-TimeoutStopSec=360\n" in (told := capsys.readouterr().out) and "stage-shard" not in told
    assert units(root, "--write") == 0
    changed = [path for path, inode in stamps.items() if path.stat().st_ino != inode]
    assert changed == [written(root)[TRAIN_SUPERVISOR]]
    assert changed[0].stat().st_mode & 0o777 == 0o644


def test_overrides_are_those_of_the_units_environment_file(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOKER_SUPERVISE__STOP_TIME", "17m")
    lines = '# proxies\n\nHTTPS_PROXY=http://a\nSTOKER_SUPERVISE__STOP_TIME = "10m" \nSTOKER_WARM=/slow\n'
    (root / "etc/stoker/mine.env").write_text(lines)
    assert units(root) == 0
    shown = capsys.readouterr().out
    assert "\nTimeoutStopSec=660\n" in shown
    assert " -/slow\n" in shown


def test_an_edited_drop_in_stays_and_the_new_one_lies_beside_it(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    units(root, "--write")
    path = written(root)[STAGE_SHARD]
    edited = path.read_text() + "MemoryMax=8G\n"
    path.write_text(edited)
    capsys.readouterr()

    assert units(root, "--write") == 1

    assert path.read_text() == edited
    assert path.with_name("50-stoker.conf.new").read_text() == edited.removesuffix("MemoryMax=8G\n")
    told = capsys.readouterr().out
    assert f"{path} has been edited and stays" in told and "-MemoryMax=8G\n" in told


def test_a_drop_in_that_was_written_for_another_file_is_told(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(root)[STAGE_SHARD]
    path.parent.mkdir(parents=True)
    other = load_pipeline(write_pipeline(root, MINIMAL.replace("name: mine", "name: other"), "other"))
    path.write_text(drop_in(other, STAGE_SHARD, None))
    assert units(root, "--write") == 0
    assert f"wrote {path} in place of that for /etc/stoker/other.yaml\n" in capsys.readouterr().out


@pytest.mark.parametrize(("there", "why"), [(True, "is another one"), (False, "does not exist")])
def test_a_file_that_the_units_do_not_read_gets_no_drop_ins(
    root: Path, capsys: pytest.CaptureFixture[str], there: bool, why: str
) -> None:
    other = root / "mine.yaml"
    shutil.copy(root / "etc/stoker/mine.yaml", other)
    if not there:
        (root / "etc/stoker/mine.yaml").unlink()
    assert exit_code(["units", str(other), "--root", str(root), "--write"]) == 64
    assert f"read {root}/etc/stoker/mine.yaml, which {why}: install" in capsys.readouterr().err
    assert not (root / "etc/systemd").exists()


def test_an_unreadable_file_a_missing_disk_and_a_token_for_all_are_warned_of(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stoker.cli.pipeline.units.ACCOUNT", "nobody")
    file, token = root / "etc/stoker/mine.yaml", root / "token"
    file.write_text(
        MINIMAL.replace("{kind: folder, path: parquet}", f"{{kind: hub, repo: a/b, token_file: {token}}}")
    )
    file.chmod(0o600)
    token.write_text("secret-word\n")
    token.chmod(0o644)

    assert units(root) == 0

    told = capsys.readouterr().err
    assert f"warning: nobody may not read {file}: chgrp " in told
    assert f"warning: {file.parent}/hot does not exist: mount its disk, or install -d " in told
    assert f"warning: {token} may be read by every user (mode 0644): chmod 600" in told
    assert "secret-word" not in told
    file.chmod(0o644)
    file.parent.chmod(0o700)
    units(root)
    told = capsys.readouterr().err
    assert "may not read" not in told
    assert "warning: nobody may not enter /" in told


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone gives a file to another group")
def test_the_accounts_group_may_read_the_file(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stoker.cli.pipeline.units.ACCOUNT", "nobody")
    file = root / "etc/stoker/mine.yaml"
    file.chmod(0o640)
    os.chown(file, 0, pwd.getpwnam("nobody").pw_gid)
    units(root)
    assert "may not read" not in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone gives a directory to another user")
def test_a_state_directory_whose_owner_has_no_name_is_warned_of(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = load_pipeline(root / "etc/stoker/mine.yaml").state
    state.mkdir(parents=True)
    os.chown(state, 54321, 0)
    units(root)
    assert f"{state} is user 54321's, whom systemd does not know: chown " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "mode", "flaw"),
    [
        ("word\n", 0o600, ""),
        ("word\n", 0o640, ""),
        ("two\nlines\n", 0o600, "holds 2 words"),
        ("\n", 0o600, "0 words"),
    ],
)
def test_a_token_file_has_one_word_for_few(tmp_path: Path, content: str, mode: int, flaw: str) -> None:
    (tmp_path / "token").write_text(content)
    (tmp_path / "token").chmod(mode)
    found = secret_file_flaw(tmp_path / "token")
    assert flaw in found and bool(flaw) == bool(found)


def test_the_credentials_default_is_no_token_and_the_credential_stands_in_for_its_file(
    tmp_path: Path,
) -> None:
    credential, environ = tmp_path / "hub-token", {"CREDENTIALS_DIRECTORY": str(tmp_path)}
    credential.write_text("-")
    assert hub_token(None, environ) is None
    assert hub_token(None, {**environ, "HF_TOKEN": "mine"}) == "mine"
    credential.write_text("word\n")
    assert hub_token(str(tmp_path / "for root alone"), environ) == "word"


def test_a_daemon_knows_its_unit_by_its_cgroup(monkeypatch: pytest.MonkeyPatch) -> None:
    unit = "stoker-stage-shard@mine.service"
    assert manager_of_unit(STAGE_SHARD, "mine", f"0::/stoker.slice/{unit}\n") is SYSTEM
    assert (
        manager_of_unit(STAGE_SHARD, "mine", f"5:memory:/x\n1:name=systemd:/system.slice/{unit}\n") is SYSTEM
    )
    assert manager_of_unit(STAGE_SHARD, "other", f"0::/stoker.slice/{unit}\n") is None
    assert manager_of_unit(STAGE_SHARD, "mine", "0::/user.slice/session-1.scope\n") is None
    own = f"0::/user.slice/user-1000.slice/user@1000.service/app.slice/{unit}\n"
    monkeypatch.setenv("XDG_CONFIG_HOME", "/c")
    assert manager_of_unit(STAGE_SHARD, "mine", own) == users_manager()
    assert users_manager().files == Path("/c/stoker")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
def test_an_external_trainers_relaxations_are_scored(root: Path) -> None:
    (root / "etc/stoker/mine.yaml").write_text(OWN)
    pipeline = load_pipeline(root / "etc/stoker/mine.yaml")
    text = drop_in(pipeline, TRAIN_SUPERVISOR, None)
    unit = "stoker-train-supervisor@mine.service"
    sentence = exposure(unit, text, (UNITS,))
    assert f"{unit} has an exposure of " in sentence
    opened = exposure(unit, f"{text}[Service]\nProtectSystem=no\n", (UNITS,))
    score, worse = (float(each.split("exposure of ")[1].split()[0]) for each in (sentence, opened))
    assert score <= 2.0 and score < worse
    assert "is not installed" in exposure(unit, text, ())
