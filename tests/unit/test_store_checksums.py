"""SHA256SUMS: written last, read with care, each difference named."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest

from stoker.store.checksums import SUMS, prove_checksums, read_checksums, write_checksums
from stoker.store.errors import DataError

FILES = {"a.json": b"{}", "below/b.bin": b"\1\2"}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for name, data in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    write_checksums(tmp_path, {name: hashlib.sha256(data).hexdigest() for name, data in FILES.items()})
    return tmp_path


def test_what_is_written_is_proven_here_and_by_coreutils(directory: Path) -> None:
    sums, difference = prove_checksums(directory)
    assert (sums.keys(), difference) == (FILES.keys(), "")
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", SUMS], cwd=directory, check=True)


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        (lambda root: (root / "a.json").write_bytes(b"[]"), "a.json has the sha256"),
        (lambda root: (root / "a.json").unlink(), "a.json is missing"),
        (lambda root: (root / "more").write_bytes(b""), "more is not in SHA256SUMS"),
        (lambda root: (root / "link").symlink_to("/"), "link is not in SHA256SUMS"),
    ],
)
def test_each_difference_is_named(directory: Path, change: object, difference: str) -> None:
    assert callable(change)
    change(directory)
    assert prove_checksums(directory)[1].startswith(difference)


@pytest.mark.parametrize(
    "text", ["", "0" * 63 + "  a\n", "0" * 64 + "  ../a\n", "0" * 64 + "  /a\n", ("0" * 64 + "  a\n") * 2]
)
def test_a_list_that_is_damaged_or_leads_out_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / SUMS).write_text(text)
    if text:
        with pytest.raises(DataError, match=r"SHA256SUMS, line|is no path inside"):
            read_checksums(tmp_path)
    else:
        assert read_checksums(tmp_path) == {}
