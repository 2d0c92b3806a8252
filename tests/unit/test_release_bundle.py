"""A bundle: its card, its types of weights, its one file; bad input; every flipped bit is found."""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from stoker.cli.bundles import proven_bundle
from stoker.cli.main import exit_code
from stoker.cli.transformers_model import _bfloat16
from stoker.release.card import read_about
from stoker.release.publish import read_bundle
from stoker.store.checksums import SUMS, checksums_of, write_checksums
from stoker.store.errors import DataError, StokerError, UsageError
from support.model_checkpoints import checkpoint_of

ABOUT = "---\nlicense: cc-by-4.0\nlanguage: [en, de]\n---\n# For tests\n\nUse it *there*.\n"
HOSTILE = "a|b\n# c <script> [x](http://y) `z` \x1b[2J _w_ {{ 1 + 1 }}"


@pytest.fixture(autouse=True)
def no_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The proof by transformers has tests of its own."""
    monkeypatch.setitem(sys.modules, "transformers", None)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with one checkpoint of a run with a name of somebody's."""
    home = tmp_path_factory.mktemp("bundle") / "run"
    checkpoint_of(home, body={"run": HOSTILE, "val_loss": 3.25}, kv_heads=2, tie_embeddings=False)
    return home


@pytest.fixture(scope="module")
def made(run: Path) -> Path:
    """A bundle of it; only looked at."""
    out = run.parent / "made"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "transformers", None)
        assert exit_code(["bundle", str(run), str(out)]) == 0
    return out


def test_a_bundle_has_true_sums_and_tells_nothing_of_this_machine(made: Path, run: Path) -> None:
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", SUMS], cwd=made, check=True)
    assert exit_code(["verify", "model", str(made)]) == 0
    told = json.loads((made / "release.json").read_bytes())
    assert (told["proven"], told["license"], told["step"], told["run"]) == (False, None, 7, HOSTILE)
    assert told["architecture"] == "LlamaForCausalLM" and "transformers" not in told["versions"]
    assert not any(os.fsencode(run.parent.parent) in file.read_bytes() for file in made.iterdir())


def test_the_card_shows_words_of_others_as_text_and_says_what_is_not_known(made: Path) -> None:
    card = (made / "README.md").read_text()
    assert r"a\|b\\n\# c \<script\> \[x\]\(http\:\/\/y\) \`z\` \\x1b\[2J \_w\_ \{\{ 1 \+ 1 \}\}" in card
    assert "| heldout loss | 3.25 |" in card and "Nobody has loaded this bundle" in card
    assert "has written nothing" in card and "windows applied, windows skipped, epochs begun" in card
    assert all(row.count("|") == 3 + row.count(r"\|") for row in card.splitlines() if row.startswith("|"))


def test_the_makers_words_are_in_the_card_and_its_license_in_both_places(run: Path, tmp_path: Path) -> None:
    file, out = tmp_path / "about.md", tmp_path / "out"
    file.write_text(ABOUT)
    assert exit_code(["bundle", str(run), str(out), "--card", str(file), "--license", "cc-by-4.0"]) == 0
    card = (out / "README.md").read_text()
    front = "---\nlibrary_name: transformers\npipeline_tag: text-generation\nlicense: cc-by-4.0\nlanguage:\n"
    assert sorted(card.split("---")[1].split()) == sorted([*front.split()[1:], "-", "en", "-", "de"])
    assert "\n# For tests\n\nUse it *there*.\n\n" in card and "has written nothing" not in card
    assert json.loads((out / "release.json").read_bytes())["license"] == "cc-by-4.0"


@pytest.mark.parametrize(
    ("text", "license_id", "error", "words"),
    [
        (b"\xff", None, DataError, "write markdown in UTF-8"),
        (b"a\0b", None, DataError, "it has a NUL"),
        (b"x" * ((1 << 20) + 1), None, DataError, "more than 1,048,576 bytes"),
        (b"---\nlicense: [mit\n---\n", None, DataError, "front matter in YAML"),
        (b"---\n- mit\n---\n", None, DataError, "should be a dict"),
        (b"---\n1: mit\n---\n", None, DataError, "keywords must be strings"),
        (b"---\na: " + b"[" * 2000 + b"\n---\n", None, DataError, "front matter in YAML"),
        (b"---\nlicense: [mit, gpl]\n---\n", None, DataError, "is no id such as apache-2.0"),
        (b"---\nlicense: My License\n---\n", None, DataError, "'My License' is no id"),
        (b"---\nlicense: mit\n---\n", "apache-2.0", UsageError, "leave out one of them"),
        (b"words", "../x", UsageError, "--license: the license '../x' is no id"),
        (None, None, UsageError, "is no file"),
    ],
)
def test_a_card_that_cannot_be_used_is_refused(
    text: bytes | None, license_id: str | None, error: type[StokerError], words: str, tmp_path: Path
) -> None:
    file = tmp_path / "about.md"
    if text is not None:
        file.write_bytes(text)
    with pytest.raises(error, match=words.replace("[", r"\[")):
        read_about(file, license_id)


@pytest.mark.parametrize(
    ("text", "license_id", "found"),
    [
        ("words", None, (None, "words")),
        ("words", "mit", ("mit", "words")),
        ("\ufeff---\nlicense: mit\n---\n\n words\r\n", "mit", ("mit", "words")),
        ("", "apache-2.0", ("apache-2.0", "")),
    ],
)
def test_the_license_may_stand_in_either_place(
    text: str, license_id: str | None, found: tuple[str | None, str], tmp_path: Path
) -> None:
    (tmp_path / "about.md").write_text(text)
    about = read_about(tmp_path / "about.md", license_id)
    assert (about.license, about.text) == found
    assert (f"license: {about.license}" in about.front_matter) == (about.license is not None)


def test_bfloat16_is_rounded_as_torch_rounds_it() -> None:
    bits = np.random.default_rng(1).integers(0, 2**32, 1 << 16, dtype=np.uint32)
    ties = (np.arange(1 << 10, dtype=np.uint32) << 22) | 0x8000
    special = np.array([0, 1 << 31, 0x7F800000, 0xFF800000, 0x7F7FFFFF, 0xFF7FFFFF, 1, 0x00018000], np.uint32)
    values = np.concatenate([bits, ties, ties | 0x10000, ties - 1, ties + 1, special]).view(np.float32)
    wanted = torch.from_numpy(values).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    is_nan = np.isnan(values)
    assert (_bfloat16(values)[~is_nan] == wanted[~is_nan]).all()
    assert ((_bfloat16(values)[is_nan] & 0x7FFF) > 0x7F80).all(), "and stays not a number"


def test_weights_in_bfloat16_are_those_of_float32_rounded(made: Path, run: Path, tmp_path: Path) -> None:
    assert exit_code(["bundle", str(run), str(tmp_path / "out"), "--dtype", "bfloat16"]) == 0
    whole, rounded = load_file(made / "model.safetensors"), load_file(tmp_path / "out" / "model.safetensors")
    assert whole.keys() == rounded.keys()
    assert all(rounded[name].equal(whole[name].to(torch.bfloat16)) for name in whole)
    assert json.loads((tmp_path / "out" / "config.json").read_bytes())["dtype"] == "bfloat16"


def test_the_tarball_holds_the_same_bytes_each_time_and_nothing_else_is_left(
    made: Path, run: Path, tmp_path: Path
) -> None:
    for name in ("a.tar", "b.tar"):
        assert exit_code(["bundle", str(run), str(tmp_path / name), "--tar"]) == 0
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a.tar", "b.tar"]
    with tarfile.open(tmp_path / "a.tar") as archive:
        members = archive.getmembers()
        assert {(each.mtime, each.uid, each.gid, each.uname, oct(each.mode)) for each in members} == {
            (0, 0, 0, "", "0o644")
        }
        archive.extractall(tmp_path, filter="data")
    whole = {f"step-000000007/{file.name}": file.read_bytes() for file in made.iterdir()}
    assert [each.name for each in members] == sorted(whole)
    assert {name: (tmp_path / name).read_bytes() for name in whole} == whole


def test_the_link_turns_to_each_new_bundle_and_where_only_it_is_missing(run: Path, tmp_path: Path) -> None:
    link, words = tmp_path / "current", ["--current", str(tmp_path / "current")]
    (tmp_path / ".tmp-current").symlink_to("of-a-killed-command")
    for name in ("one", "two", "below/three"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        assert exit_code(["bundle", str(run), str(tmp_path / name), *words]) == 0
        assert link.resolve() == tmp_path / name
        assert str(link.readlink()) == (name if "/" not in name else str(tmp_path / name))
    link.unlink()
    before = (tmp_path / "two").stat().st_ino
    assert exit_code(["bundle", str(run), str(tmp_path / "two"), *words]) == 0
    assert link.resolve() == tmp_path / "two" and (tmp_path / "two").stat().st_ino == before
    (tmp_path / "about.md").write_text("other words than the bundle's")
    assert (
        exit_code(["bundle", str(run), str(tmp_path / "two"), *words, "--card", str(tmp_path / "about.md")])
        == 64
    )
    with pytest.MonkeyPatch.context() as patch:  # the remedy for one that is not proven is to make it again
        patch.setattr("importlib.util.find_spec", lambda _: True)
        assert exit_code(["bundle", str(run), str(tmp_path / "two"), *words]) == 64
    (tmp_path / "two" / "README.md").write_text("another's")
    assert exit_code(["bundle", str(run), str(tmp_path / "two"), *words]) == 64
    assert not [*tmp_path.glob(".tmp-*")]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["out", "--current", "directory"], "directory is no symbolic link"),
        (["out", "--current", "out"], "out is out or lies in it"),
        (["out", "--current", "out/link"], "has no directory"),
        (["directory/new", "--current", "gone/link"], "has no directory"),
        (["out.tar", "--tar", "--current", "link"], "leave out one of them"),
        (["directory"], "directory exists"),
        (["gone/out"], "gone does not exist"),
        (["out", "--dtype", "float16"], "float32"),
    ],
)
def test_bad_words_make_nothing(
    words: list[str], sentence: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "directory").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        assert exit_code(["bundle", str(run), *words]) == 64
    assert sentence in capsys.readouterr().err.replace("\n", " ")
    assert [entry.name for entry in tmp_path.iterdir()] == ["directory"]


def test_a_tokenizer_with_more_ids_than_rows_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint_of(tmp_path / "run", wider=-1)
    assert exit_code(["bundle", str(tmp_path / "run"), str(tmp_path / "out")]) == 65
    assert "the model has rows for" in capsys.readouterr().err
    assert [entry.name for entry in tmp_path.iterdir()] == ["run"]


ASKED = itertools.cycle((proven_bundle, read_bundle))


def flip(directory: Path, dice: random.Random) -> Callable[[], int]:
    """Flips a bit of any byte of any file; returns what flips it back."""
    files = sorted(directory.iterdir())
    ends = np.cumsum([file.stat().st_size for file in files])
    # Half of them in the small files, where a bit may mean more.
    place = dice.randrange(ends[-1]) if dice.random() < 0.5 else None
    file = files[int(np.searchsorted(ends, place, "right"))] if place is not None else dice.choice(files)
    raw = file.read_bytes()
    at, bit = dice.randrange(len(raw)), 1 << dice.randrange(8)
    file.write_bytes(raw[:at] + bytes([raw[at] ^ bit]) + raw[at + 1 :])
    return lambda: file.write_bytes(raw)


@pytest.mark.parametrize("count", [200, pytest.param(10_000, marks=pytest.mark.long)])
def test_every_flipped_bit_is_found_and_neither_served_nor_published(
    count: int, run: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert exit_code(["bundle", str(run), str(out), "--license", "mit"]) == 0
    told = json.loads((out / "release.json").read_bytes())
    (out / "release.json").write_text(json.dumps({**told, "proven": True}))  # as if transformers were here
    write_checksums(out, checksums_of(out))
    dice = random.Random(count)
    for _ in range(count):
        undo = flip(out, dice)
        assert_refused(out)
        undo()
    listed = out / SUMS
    raw = listed.read_bytes()
    for at in range(len(raw)) if count > 1000 else (0, 64, 65, 66, len(raw) - 1):
        for bit in range(8):
            listed.write_bytes(raw[:at] + bytes([raw[at] ^ 1 << bit]) + raw[at + 1 :])
            assert_refused(out)
    listed.write_bytes(raw)
    assert proven_bundle(out) == out and read_bundle(out)


def assert_refused(directory: Path) -> None:
    """By what serve and generate ask first, or by what publish asks."""
    with pytest.raises(DataError):
        next(ASKED)(directory)


@pytest.mark.parametrize(
    ("spoil", "verdict"),
    [
        (lambda out: (out / "config.json").write_text("{}"), (1, "invalid: config.json has the sha256")),
        (lambda out: (out / "pickle.bin").write_text(""), (1, "invalid: pickle.bin is not in SHA256SUMS")),
        (lambda out: (out / SUMS).write_text("words"), (1, "invalid: ")),
        (lambda out: (out / SUMS).unlink(), (64, "holds nothing of this kind")),
    ],
)
def test_verify_model_tells_what_differs(
    spoil: Callable[[Path], Any],
    verdict: tuple[int, str],
    run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    assert exit_code(["bundle", str(run), str(out)]) == 0
    spoil(out)
    assert exit_code(["verify", "model", str(out)]) == verdict[0]
    printed = capsys.readouterr()
    assert verdict[1] in printed.out + printed.err
