"""Bundles on their way to a hub and back, with the real client of the hub against one on loopback."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import HfApi

from stoker.store.checksums import prove_checksums
from support.bundles import contents, small_bundle
from support.commands import Ended, stoker
from support.downloads import ENVIRON, stoker_command
from support.loopback_hub import LoopbackHub
from support.waiting import LONG_S, wait_until

TOKEN = "hf_good-token"
WEIGHTS = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopbackHub]:
    with LoopbackHub(tmp_path_factory.mktemp("hub")) as hub:
        yield hub


@pytest.fixture
def hub(running: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> LoopbackHub:
    running.control("clear")
    running.control("forget")
    running.control("set", token=TOKEN, made=[], pulls=[], gated={}, refs={})
    for name, value in {**ENVIRON, "HF_TOKEN": TOKEN, "HF_ENDPOINT": running.endpoint}.items():
        monkeypatch.setenv(name, value)
    return running


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that a command of this process makes, without waiting."""
    made: list[float] = []
    monkeypatch.setattr("stoker.release.hub.time", SimpleNamespace(sleep=made.append))
    return made


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return small_bundle(tmp_path / "bundle")


def held(hub: LoopbackHub, repo: str) -> dict[str, bytes]:
    """What a repository holds, without what the hub itself wrote."""
    return {
        path: data for path, data in contents(hub.root / "model" / repo).items() if path != ".gitattributes"
    }


def commits(hub: LoopbackHub) -> list[list[str]]:
    found: list[list[str]] = hub.control("made")["commits"]
    return found


def secretless(ended: Ended) -> str:
    said = ended.stdout + ended.stderr
    assert TOKEN not in said and "Signature" not in said, said
    return said


def test_a_bundle_is_one_commit_and_the_same_bundle_again_is_none(hub: LoopbackHub, bundle: Path) -> None:
    ended = stoker("publish", bundle, "org/first", "--private")
    assert ended.returncode == 0, ended.stderr
    assert held(hub, "org/first") == contents(bundle)
    assert commits(hub) == [sorted(contents(bundle))]
    assert hub.control("made")["visibility"] == {"org/first": "private"}
    assert f"{hub.endpoint}/org/first/commit/" in ended.stdout and "8 files in one commit" in ended.stdout
    assert str(bundle) not in secretless(ended)
    sent = {(each["host"], each["authorization"]) for each in hub.requests()}
    assert sent == {("127.0.0.1", f"Bearer {TOKEN}"), ("127.0.0.2", None)}, "a signed address needs no token"
    again = stoker("publish", bundle, "org/first", "--private")
    assert again.returncode == 0 and "is there already; nothing to do" in again.stdout
    assert len(commits(hub)) == 1


def test_the_next_bundle_replaces_what_differs_and_deletes_what_it_has_not(
    hub: LoopbackHub, bundle: Path, tmp_path: Path
) -> None:
    assert stoker("publish", bundle, "org/next").returncode == 0
    hub.put("pytorch_model.bin", b"a pickle", repo="model/org/next")
    following = small_bundle(tmp_path / "following", seed=1, step=40)
    public = stoker("publish", following, "org/next", "--private")
    assert public.returncode == 64 and "is public" in public.stderr and len(commits(hub)) == 1
    ended = stoker("publish", following, "org/next")
    assert "4 files in one commit, 1 deleted" in ended.stdout, ended.stderr
    assert commits(hub)[1] == ["SHA256SUMS", *WEIGHTS, "release.json", "pytorch_model.bin"]
    assert held(hub, "org/next") == contents(following)


def test_a_pull_request_is_proposed_once(hub: LoopbackHub, bundle: Path) -> None:
    hub.put("README.md", b"before", repo="model/org/pr")
    hub.fault("lost", on="api", path="commit", seconds=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stoker.release.hub.time", SimpleNamespace(sleep=lambda _: None))
        lost = stoker("publish", bundle, "org/pr", "--pr")
    assert lost.returncode == 0 and "the bundle is there" in lost.stdout, lost.stderr
    again = stoker("publish", bundle, "org/pr", "--pr")
    assert "is there already" in again.stdout, again.stderr
    assert hub.control("made")["pulls"] == ["Step 20 of main"]
    assert held(hub, "org/pr") == {"README.md": b"before"}, "main waits for people"


def test_a_lost_answer_is_found_out_and_not_committed_twice(
    hub: LoopbackHub, bundle: Path, pauses: list[float]
) -> None:
    hub.fault("lost", on="api", path="commit", seconds=0)
    ended = stoker("publish", bundle, "org/lost")
    assert ended.returncode == 0 and "the bundle is there\n" in ended.stdout, ended.stderr
    assert len(commits(hub)) == 1 and len(pauses) == 1
    assert held(hub, "org/lost") == contents(bundle)


def test_a_commit_that_lacks_a_file_is_found_out(
    hub: LoopbackHub, bundle: Path, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = HfApi.create_commit
    most: Any = lambda own, repo, files, **way: whole(own, repo, files[1:], **way)  # noqa: E731
    monkeypatch.setattr(HfApi, "create_commit", most)
    ended = stoker("publish", bundle, "org/lacks")
    assert ended.returncode == 65 and "has other files than bundle; publish it again" in ended.stderr
    assert not pauses


def test_a_hub_that_is_busy_or_broken_is_waited_for(
    hub: LoopbackHub, tmp_path: Path, pauses: list[float]
) -> None:
    bundle = small_bundle(tmp_path / "bundle", seed=2)
    hub.fault("status", on="api", path="preupload", code=429, retry_after="7")
    hub.fault("status", on="cdn", path="upload", code=503)
    hub.fault("status", on="api", path="commit", code=504)
    ended = stoker("publish", bundle, "org/busy")
    assert ended.returncode == 0, ended.stderr
    assert len(pauses) == 3 and pauses[0] >= 7 and "answers 503" in ended.stderr
    assert len(commits(hub)) == 1 and held(hub, "org/busy") == contents(bundle)
    secretless(ended)


def test_a_hub_that_stays_broken_is_given_up(hub: LoopbackHub, bundle: Path, pauses: list[float]) -> None:
    hub.fault("status", on="api", path="org/never", code=503, times=-1)
    ended = stoker("publish", bundle, "org/never")
    assert ended.returncode == 69 and "answers 503" in ended.stderr and "again later" in ended.stderr
    assert 1500 < sum(pauses) <= 1800 and not commits(hub)


def test_a_repository_that_moved_meanwhile_is_refused(
    hub: LoopbackHub, bundle: Path, pauses: list[float]
) -> None:
    hub.fault("moved", on="api", path="commit")
    ended = stoker("publish", bundle, "org/moved")
    assert ended.returncode == 75 and "was changed meanwhile" in ended.stderr
    assert held(hub, "org/moved") == {"another.txt": b"by somebody else"} and not commits(hub)


def test_a_bundle_that_changes_meanwhile_is_not_committed(
    hub: LoopbackHub, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind a link that `stoker bundle --current` turns."""
    link = bundle.with_name("current")
    link.symlink_to(bundle)
    following = small_bundle(bundle.with_name("following"), seed=1)

    def turn(_: float) -> None:
        link.unlink()
        link.symlink_to(following)

    monkeypatch.setattr("stoker.release.hub.time", SimpleNamespace(sleep=turn))
    hub.fault("status", on="api", path="preupload", code=503)
    turned = stoker("publish", link, "org/turned")
    assert turned.returncode == 0 and held(hub, "org/turned") == contents(bundle), turned.stderr
    flip = SimpleNamespace(sleep=lambda _: (bundle / "tokenizer.json").write_bytes(b"{}"))
    monkeypatch.setattr("stoker.release.hub.time", flip)
    hub.fault("status", on="api", path="preupload", code=503)
    flipped = stoker("publish", bundle, "org/flipped")
    assert flipped.returncode == 65 and "tokenizer.json was changed" in flipped.stderr
    assert len(commits(hub)) == 1


def test_refusals_say_what_to_do(hub: LoopbackHub, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.put("chat_template.jinja", b"{}", repo="model/org/own")
    hub.put("data.parquet", b"rows", repo="dataset/org/rows")
    hub.put("config.json", b"{}", repo="model/org/gated")
    other = stoker("publish", bundle, "org/rows")
    assert other.returncode == 69 and "org/rows is a dataset" in other.stderr
    branch = stoker("publish", bundle, "org/gated", "--revision", "dev")
    assert branch.returncode == 69 and "no revision 'dev'; correct --revision" in branch.stderr
    assert stoker("publish", bundle, "org/gated", "--pr", "--revision", "dev").returncode == 64
    name = stoker("publish", bundle, "no/such/name")
    assert name.returncode == 69 and "REPO" in name.stderr
    owner = stoker("publish", bundle, "name")
    assert owner.returncode == 64 and "name OWNER/NAME" in owner.stderr
    packed = stoker("publish", bundle / "config.json", "org/gated")
    assert packed.returncode == 65 and "name the directory" in packed.stderr
    hub.fault("status", on="api", path="preupload", code=403)
    readonly = stoker("publish", bundle, "org/gated")
    assert readonly.returncode == 69 and "forbids it" in readonly.stderr and "injected" in readonly.stderr
    hub.fault("status", on="cdn", path="upload", code=400)
    store = stoker("publish", small_bundle(bundle.with_name("other"), seed=7), "org/gated")
    assert store.returncode == 69 and "answers 400\n" in store.stderr, "it may repeat a signature"
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    wrong = stoker("publish", bundle, "org/gated")
    assert wrong.returncode == 69 and "does not accept the token" in wrong.stderr
    assert "hf_wrong" not in wrong.stderr
    monkeypatch.setenv("HF_TOKEN", "")
    without = stoker("publish", bundle, "org/gated")
    assert without.returncode == 69 and "--token-file or HF_TOKEN" in without.stderr
    assert not commits(hub)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    offline = stoker("fetch-model", "org/gated", bundle.parent / "offline")
    assert offline.returncode == 69 and "HF_HUB_OFFLINE is set" in offline.stderr


def started(*words: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*stoker_command(), *map(str, words)], stderr=subprocess.PIPE)


def killed_at(
    hub: LoopbackHub, fault: dict[str, Any], *words: object, come: Callable[[], bool] = lambda: True
) -> None:
    """Kill a command with -9 while the hub does not answer the request that the fault names, and it has come
    so far."""
    hub.control("clear")
    hub.fault(**fault)
    before = sum(hub.control("struck").values())
    process = started(*words)
    try:

        def struck() -> bool:
            assert process.poll() is None, process.stderr and process.stderr.read()
            return sum(hub.control("struck").values()) > before and come()

        wait_until(struck, what=f"the fault {fault}")
    finally:
        process.kill()
        process.communicate(timeout=LONG_S)
        hub.control("clear")


PHASES = (
    {"kind": "slow_head", "on": "api", "path": "create"},
    {"kind": "slow_head", "on": "api", "path": "preupload"},
    {"kind": "slow_head", "on": "api", "path": "batch"},
    {"kind": "slow_head", "on": "cdn", "path": "upload"},
    {"kind": "slow_head", "on": "api", "path": "verify"},
    {"kind": "slow_head", "on": "api", "path": "commit"},
    {"kind": "lost", "on": "api", "path": "commit"},
)


def test_kill_9_in_any_phase_leaves_no_commit_or_one_and_the_same_command_ends_it(
    hub: LoopbackHub, tmp_path: Path
) -> None:
    bundle = small_bundle(tmp_path / "bundle", seed=3)
    for number, phase in enumerate(PHASES):
        killed_at(hub, phase, "publish", bundle, "org/killed")
        assert len(commits(hub)) == (number == len(PHASES) - 1), phase
    ended = stoker("publish", bundle, "org/killed")
    assert ended.returncode == 0 and "nothing to do" in ended.stdout, ended.stderr
    assert len(commits(hub)) == 1 and held(hub, "org/killed") == contents(bundle)


# The way back


def stored(hub: LoopbackHub, bundle: Path, repo: str) -> Path:
    """Put a bundle into a repository by hand, beside what is never fetched."""
    for name, data in contents(bundle).items():
        hub.put(name, data, repo=f"model/{repo}")
    for name in ("pytorch_model.bin", "modeling_own.py", "x.pt", ".gitattributes", ".parts/a.json"):
        hub.put(name, b"never", repo=f"model/{repo}")
    return hub.root / "model" / repo


def test_a_model_is_fetched_without_pickles_and_code_and_has_its_sums(
    hub: LoopbackHub, bundle: Path, tmp_path: Path
) -> None:
    stored(hub, bundle, "org/back")
    ended = stoker("fetch-model", "org/back", tmp_path / "back")
    assert ended.returncode == 0, ended.stderr
    assert contents(tmp_path / "back") == contents(bundle)
    assert "8 files" in ended.stdout and "all have the sums of its SHA256SUMS" in ended.stdout
    assert not hub.served("never") and not hub.requests("pytorch_model") and not hub.requests(".py")
    assert not [each for each in tmp_path.iterdir() if each.name.startswith(".tmp")]
    again = stoker("fetch-model", "org/back", tmp_path / "back")
    assert again.returncode == 64 and "exists" in again.stderr
    secretless(ended)


def test_a_fetch_killed_with_9_goes_on_where_it_stopped(hub: LoopbackHub, tmp_path: Path) -> None:
    bundle = small_bundle(tmp_path / "bundle", weights=4 << 20)
    stored(hub, bundle, "org/resumed")
    stall = {"kind": "stall", "on": "cdn", "path": WEIGHTS[0], "after": 3 << 20}
    part = tmp_path / ".tmp-back"

    def has_come() -> bool:
        return any(each.stat().st_size >= 2 << 20 for each in part.glob(".parts/*.part"))

    killed_at(hub, stall, "fetch-model", "org/resumed", tmp_path / "back", come=has_come)
    (part / "of-another-commit.json").write_text("{}")
    assert not (tmp_path / "back").exists()
    hub.control("forget")
    ended = stoker("fetch-model", "org/resumed", tmp_path / "back")
    assert ended.returncode == 0, ended.stderr
    assert contents(tmp_path / "back") == contents(bundle) and not part.exists()
    assert hub.served(WEIGHTS[0]) < 3 << 20, "what had come was not asked for again"
    assert not hub.served("config.json")


def test_a_byte_flipped_at_the_hub_or_on_the_way_is_refused(
    hub: LoopbackHub, bundle: Path, tmp_path: Path, pauses: list[float]
) -> None:
    place = stored(hub, bundle, "org/flipped")
    hub.fault("wrong", on="cdn", path=WEIGHTS[0], after=777, times=-1)
    way = stoker("fetch-model", "org/flipped", tmp_path / "way")
    assert way.returncode == 65 and f"{WEIGHTS[0]} has the sum" in way.stderr
    assert len(pauses) == 2, "a second and a third try may be right"
    hub.control("clear")
    large = small_bundle(tmp_path / "large", weights=4 << 20)
    stored(hub, large, "org/broken")
    for quarters in range(1, 5):
        hub.fault("reset", on="cdn", path="model.safetensors", after=quarters * 900_000)
    broken = stoker("fetch-model", "org/broken", tmp_path / "broken")
    assert broken.returncode == 0 and contents(tmp_path / "broken") == contents(large), broken.stderr
    flipped = bytearray((place / "tokenizer.json").read_bytes())
    flipped[3] ^= 1
    (place / "tokenizer.json").write_bytes(flipped)
    at_hub = stoker("fetch-model", "org/flipped", tmp_path / "way")
    assert at_hub.returncode == 65 and "SHA256SUMS says, first in tokenizer.json" in at_hub.stderr
    assert not (tmp_path / "way").exists()


def test_refused_models_say_why(hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    foreign = {"model.safetensors": b"weights", "pytorch_model.bin": b"a pickle"}
    hub.put("pytorch_model.bin", b"a pickle", repo="model/org/pickle")
    hub.put("model.safetensors", b"weights", repo="model/org/own")
    hub.put("config.json", b'{"auto_map": {}}', repo="model/org/own")
    hub.put("generation_config.json", b"5", repo="model/org/own")
    hub.put("chat_template.jinja", b"{}", repo="model/org/own")
    hub.put("data.parquet", b"rows", repo="dataset/org/rows")
    out = tmp_path / "out"
    pickle = stoker("fetch-model", "org/pickle", out)
    assert pickle.returncode == 65 and "pickles are never fetched" in pickle.stderr
    rows = stoker("fetch-model", "org/rows", out)
    assert rows.returncode == 69 and "org/rows is a dataset" in rows.stderr
    commit = stoker("fetch-model", "org/own", out, "--revision", "0" * 40)
    assert commit.returncode == 69 and "no revision" in commit.stderr and "--revision" in commit.stderr
    assert stoker("fetch-model", "org/own", tmp_path / "no/out").returncode == 64
    own = stoker("fetch-model", "org/own", out)
    assert (out / "chat_template.jinja").read_bytes() == b"{}"
    assert own.returncode == 0 and "names code (auto_map)" in own.stderr and "had no SHA256SUMS" in own.stdout
    assert not prove_checksums(out)[1]
    sums = "".join(f"{sha256(data).hexdigest()}  {name}\n" for name, data in foreign.items())
    for name, data in {**foreign, "SHA256SUMS": sums.encode()}.items():
        hub.put(name, data, repo="model/org/foreign")
    assert stoker("fetch-model", "org/foreign", tmp_path / "foreign").returncode == 0
    assert prove_checksums(tmp_path / "foreign") == ({"model.safetensors": sums[:64]}, "")
    hub.control("set", gated={"model/org/own": "another"})
    gated = stoker("fetch-model", "org/own", tmp_path / "gated")
    assert gated.returncode == 69 and "accept its conditions" in gated.stderr
    monkeypatch.setattr("stoker.cli.output.os.statvfs", lambda _: SimpleNamespace(f_bavail=0, f_frsize=1))
    hub.control("set", gated={})
    assert stoker("fetch-model", "org/own", tmp_path / "full").returncode == 74
