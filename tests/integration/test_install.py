"""scripts/install below a directory of its own: the wheel of this checkout, environments that work."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.installing import UNIT, Ground, built_wheel, next_wheel, packages_apart


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    wheel = built_wheel(tmp_path_factory)
    return wheel, next_wheel(wheel, tmp_path_factory.mktemp("next"))


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path / "root", packages_apart(tmp_path / "packages"))


@contextmanager
def at_work(ground: Ground, version: str) -> Iterator[None]:
    """A process works from the environment of a version."""
    python = next(ground.root.glob(f"opt/stoker/{version}-*/bin/python"))
    process = subprocess.Popen([python, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    try:
        yield
    finally:
        process.communicate(timeout=30)


def test_it_installs_again_upgrades_beside_what_runs_keeps_edits_and_uninstalls(
    ground: Ground, wheels: tuple[Path, Path]
) -> None:
    old, new = wheels
    data = ground.root / "var/lib/stoker/kept/data"
    data.parent.mkdir(parents=True)
    data.write_text("mine")
    assert "would make" in ground.run(old, "--dry-run").stdout
    assert set(ground.files()) == {"var/lib/stoker/kept/data"}

    ground.run(old)
    assert ground.version() == "0.1.0"
    said = subprocess.run(
        [ground.root / "opt/stoker/current/bin/python", "-P", "-c",
         "from stoker.config.load import deploy_dir as deploy, examples_dir as examples; "
         "print((deploy() / 'systemd/stoker@.target').exists(), (examples() / 'fineweb.yaml').exists())"],
        env=ground.environ, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert said.stdout == "True True\n"
    before = {
        path: path.stat().st_ino for path in ground.root.glob("usr/**/*") if path.name != "installed.json"
    }
    ground.run(old)
    assert {path: path.stat().st_ino for path in before} == before

    unit = ground.root / UNIT
    unit.write_text(f"{unit.read_text()}# mine\n")
    with at_work(ground, "0.1.0"):
        assert "kept for process" in ground.run(new).stdout
        assert ground.version() == "9.9.9"
        assert ground.environments() == ["0.1.0", "9.9.9"]
        assert unit.read_text().endswith("# mine\n")
        assert unit.with_name("stoker@.target.new").read_text().endswith("# newer\n")
        assert not (ground.root / "usr/local/lib/sysusers.d/stoker.conf").exists()
        assert "keep" not in ground.run(new).stdout
        assert "stop the pipelines" in ground.run("--uninstall", code=69).stderr
    ground.run(new)
    assert ground.environments() == ["9.9.9"]

    ground.run("--uninstall")
    assert ground.files() == {"var/lib/stoker/kept/data": b"mine", UNIT: unit.read_bytes()}
    assert not (ground.root / "opt/stoker").exists()
    assert "nothing is installed" in ground.run("--uninstall", code=69).stderr
