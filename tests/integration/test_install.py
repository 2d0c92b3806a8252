"""scripts/install below a directory of its own: the wheel of this checkout, environments that work."""

from __future__ import annotations

import fcntl
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from stoker.store.record import write_record
from support.installing import (
    REPO,
    UNIT,
    Ground,
    built_wheel,
    next_wheel,
    offline_wheel,
    packages_apart,
    quick_python,
)
from support.mounts import WHY_NOT, apart
from support.waiting import LONG_S, wait_until

PIPELINE = """
name: kept
state: {state}
hot: {state}/hot
dataset: {{name: words, source: {{kind: folder, path: /nowhere}}}}
stage: {{free_floor: 0}}
train: {{steps: 1}}
"""
RECORD = "share/stoker-install/installed.json"
INSTALL = [sys.executable, str(REPO / "scripts/install")]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A wheel of version 0.1.0, and one of 9.9.9."""
    home = tmp_path_factory.mktemp("wheels")
    wheel = offline_wheel(built_wheel(tmp_path_factory), home, packages_apart(home / "packages"))
    return wheel, next_wheel(wheel, home)


@contextmanager
def at_work(ground: Ground, version: str) -> Iterator[None]:
    """A process works from the environment of a version."""
    python = next(ground.root.glob(f"opt/stoker/{version}-*/bin/python"))
    process = subprocess.Popen([python, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    try:
        yield
    finally:
        process.communicate(timeout=LONG_S)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory, wheels: tuple[Path, Path]) -> Iterator[Ground]:
    """Both versions, a process at work in each; the second was killed on its way, while venv made it."""
    home = tmp_path_factory.mktemp("install")
    ground = Ground(home / "root", quick_python(home))
    ground.run(wheels[0])
    with ExitStack() as stack:
        stack.enter_context(at_work(ground, "0.1.0"))
        half = ground.run(wheels[1], kill="venv").stdout.partition("make ")[2].partition(";")[0]
        Path(half, "bin").mkdir(parents=True)
        assert (ground.version(), ground.environments()) == ("0.1.0", ["0.1.0", "9.9.9"])
        said = ground.run(wheels[1]).stdout
        assert "left half made" in said
        assert "kept for process" in said
        stack.enter_context(at_work(ground, "9.9.9"))
        yield ground


@pytest.fixture
def ground(both: Ground, wheels: tuple[Path, Path]) -> Ground:
    """Version 0.1.0 is in force, and 9.9.9 lies beside it."""
    for unit in both.root.glob(UNIT + "*"):
        unit.unlink()
    both.run(wheels[0])
    assert (both.version(), both.environments()) == ("0.1.0", ["0.1.0", "9.9.9"])
    return both


def test_a_second_run_changes_nothing_and_the_wheel_carries_units_and_examples(
    ground: Ground, wheels: tuple[Path, Path]
) -> None:
    def inodes() -> dict[Path, int]:
        laid = ground.root.glob("usr/**/*")
        return {path: path.stat().st_ino for path in laid if path.name != "installed.json"}

    before = inodes(), ground.files()
    ground.run(wheels[0])
    assert (inodes(), ground.files()) == before
    assert "would put 9.9.9" in ground.run(wheels[1], "--dry-run", "--prefix", "/opt/stoker/").stdout
    assert ground.files() == before[1]
    said = subprocess.run(
        [ground.root / "opt/stoker/current/bin/python", "-P", "-c",
         "from stoker.config.load import deploy_dir as deploy, examples_dir as examples; "
         "print((deploy() / 'systemd/stoker@.target').exists(), (examples() / 'fineweb.yaml').exists())"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert said.stdout == "True True\n"


def test_an_upgrade_replaces_edited_files_and_removes_what_is_no_longer_laid(
    ground: Ground, wheels: tuple[Path, Path]
) -> None:
    unit, account = ground.root / UNIT, ground.root / "usr/local/lib/sysusers.d/stoker.conf"
    drop_in = ground.root / "etc/systemd/system/stoker@.target.d/override.conf"
    drop_in.parent.mkdir(parents=True, exist_ok=True)
    drop_in.write_text("[Unit]\n")
    laid = unit.read_bytes()
    unit.write_bytes(laid + b"# mine\n")
    beside = unit.with_name(f"{unit.name}.new")  # as versions before this one laid it beside an edited file
    beside.write_bytes(laid)
    assert account.exists()
    assert f"{unit} was edited and is replaced" in ground.run(wheels[1]).stdout
    assert (unit.read_bytes(), account.exists(), ground.version()) == (laid + b"# newer\n", False, "9.9.9")
    assert not beside.exists()
    assert "was edited" not in ground.run(wheels[0]).stdout
    assert (unit.read_bytes(), account.exists(), drop_in.read_text()) == (laid, True, "[Unit]\n")
    shutil.rmtree(drop_in.parent)


def walk(ground: Ground, wheels: tuple[Path, Path], kills: list[int]) -> None:
    """Up- and downgrades that are killed, then one in peace: at any time one of the two versions works."""
    wanted = {}
    for wheel in wheels[::-1]:
        ground.run(wheel)
        wanted[wheel] = ground.files()
    for number, kill in enumerate(kills):
        ended = ground.run(wheels[(number + 1) % 2], kill=kill).returncode
        assert ground.version() in ("0.1.0", "9.9.9"), kill
        if not ended:
            assert ground.files() == wanted[wheels[(number + 1) % 2]]
    for wheel in wheels:
        ground.run(wheel)
        assert ground.files() == wanted[wheel]


def test_an_upgrade_killed_anywhere_leaves_one_version_that_works(
    ground: Ground, wheels: tuple[Path, Path]
) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    walk(ground, wheels, random.Random(seed).sample(range(1, 19), 5))


@pytest.mark.long
def test_an_upgrade_killed_before_each_of_its_acts_leaves_one_version_that_works(
    ground: Ground, wheels: tuple[Path, Path]
) -> None:
    walk(ground, wheels, [number // 2 for number in range(2, 42)])


def test_a_removal_that_is_killed_goes_on_and_leaves_data_and_links_of_others(
    ground: Ground, wheels: tuple[Path, Path], tmp_path: Path
) -> None:
    assert "stop the pipelines" in ground.run("--uninstall", code=69).stderr
    assert "say --prefix /opt/stoker" in ground.run("--uninstall", "--prefix", "/opt/other", code=78).stderr
    copy = ground.copy(tmp_path / "copy")
    data, unit = copy.root / "var/lib/stoker/kept/data", copy.root / UNIT
    data.parent.mkdir(parents=True)
    data.write_text("mine")
    laid = unit.read_bytes()
    unit.unlink()  # a link to the other's
    unit.write_bytes(laid + b"# mine\n")
    command, record = (copy.root / f"usr/local/{name}" for name in ("bin/stoker", RECORD))
    command.unlink()
    command.symlink_to("/home/someone/stoker")
    assert "stoker is not ours and is left" in copy.run(wheels[0]).stdout
    laid = record.read_bytes()
    record.unlink()  # it is a link to the other's, too
    record.write_bytes(laid[:40])
    assert "is damaged: remove it" in copy.run("--uninstall", code=65).stderr
    record.write_bytes(laid)
    for kill in (3, 4, 8, 16):
        assert copy.run("--uninstall", kill=kill).returncode == -9
    copy.run("--uninstall")
    left = {
        "var/lib/stoker/kept/data": b"mine",
        "usr/local/bin/stoker": b"/home/someone/stoker",
    }
    assert copy.files() == left
    assert not (copy.root / "opt/stoker").exists()
    assert "nothing is installed" in copy.run("--uninstall", code=69).stderr
    assert copy.files() == left


def test_what_a_newer_version_wrote_refuses_an_older_wheel_and_nothing_changes(
    ground: Ground, wheels: tuple[Path, Path], tmp_path: Path
) -> None:
    file, record = ground.root / "etc/stoker/kept.yaml", tmp_path / "state/datasets/words.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(PIPELINE.format(state=tmp_path / "state"))
    record.parent.mkdir(parents=True)
    write_record(record, {"v": 2, "dataset": "words"})
    before = ground.files()
    said = ground.run(wheels[1], code=78).stderr
    assert str(record) in said
    assert "format version 2, this Stoker reads version 1" in said
    assert (ground.files(), ground.version()) == (before, "0.1.0")

    write_record(record, {"v": 1, "dataset": "words"})
    file.write_text(f"nonsense: 1\n{file.read_text()}")
    try:
        assert "nonsense" in ground.run(wheels[1]).stdout, "warned of, and its daemons refuse a reload"
        assert ground.version() == "9.9.9"
    finally:
        file.unlink()


def test_a_place_that_cannot_be_is_refused_with_a_remedy(ground: Ground, wheels: tuple[Path, Path]) -> None:
    before = ground.files()
    assert "say --prefix /opt/stoker" in ground.run(wheels[0], "--prefix", "/opt/other", code=78).stderr
    assert "absolute path" in ground.run(wheels[0], "--prefix", "opt", code=64).stderr
    assert "no wheel of Stoker" in ground.run(REPO / "pyproject.toml", code=65).stderr
    assert ground.files() == before


@pytest.mark.parametrize(
    ("mount", "prefix", "said"),
    [
        ("chmod 750 {tmp}", "{tmp}/x", "account stoker may not enter: name another --prefix"),
        ("chown 1 {tmp} && export HOME={tmp}", "{tmp}/x --user", "another user's: run this as that user"),
    ],
)
def test_a_closed_directory_and_the_home_of_another_are_refused(
    wheels: tuple[Path, Path], tmp_path: Path, mount: str, prefix: str, said: str
) -> None:
    install = (
        f"{' '.join(INSTALL)} {wheels[0]} --dry-run --python /bin/sh --prefix {prefix.format(tmp=tmp_path)}"
    )
    command = apart(["sh", "-c", f"{mount.format(tmp=tmp_path)} && exec {install}"])
    if command is None:
        pytest.skip(WHY_NOT)
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONG_S, check=False)
    assert done.returncode == 78, done.stderr
    assert said in done.stderr


def test_two_at_once_wait_for_each_other_and_an_interrupt_is_no_traceback(
    ground: Ground, wheels: tuple[Path, Path]
) -> None:
    with (ground.root / f"usr/local/{RECORD}").with_name(".lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        command = [*INSTALL, *ground.options(wheels[0])]
        second = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert second.stdout is not None
        assert "waiting for another installation" in second.stdout.readline()
        second.send_signal(signal.SIGINT)
        assert "interrupted; run this again" in second.communicate(timeout=LONG_S)[1]
        assert second.returncode == 130


@pytest.mark.long
def test_a_pip_that_outlives_a_killed_installation_is_waited_for(
    wheels: tuple[Path, Path], tmp_path: Path
) -> None:
    ground = Ground(tmp_path / "root")
    command = [*INSTALL, *ground.options(wheels[0])]
    first = subprocess.Popen(command, env=ground.environ, stdout=subprocess.DEVNULL)
    wait_until(lambda: list(ground.root.glob("opt/stoker/*/constraints.txt")), LONG_S, "pip to begin")
    first.send_signal(signal.SIGKILL)
    first.wait(LONG_S)
    said = ground.run(wheels[0]).stdout
    assert "waiting for" in said
    assert "left half made" in said
    assert ground.version() == "0.1.0"
