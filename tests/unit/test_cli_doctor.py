"""What `stoker doctor` judges and what its bundle hides, as tables."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from stoker.cli.doctor import checks, command
from stoker.cli.doctor.bundle import mask
from stoker.cli.doctor.checks import CHECKS, Finding, told
from stoker.cli.doctor.command import UNHEARD, _lines, _rows
from stoker.config.schema import Pipeline
from stoker.observe.ledger import Claim, write_claims
from stoker.observe.machine import MemoryFacts
from stoker.store.errors import ConfigError, UnavailableError
from stoker.store.layout import DAEMONS, STAGE_SHARD
from stoker.systemd.units import allows
from support.config_files import MINIMAL, load_text
from support.loopback_hub import REPO, LoopbackHub

DAY_S = 86_400
X = "********"


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    made = load_text(tmp_path, MINIMAL)
    made.layout.create()
    return made


def outcomes(found: Any) -> list[str]:
    return [one.outcome for one in found]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://me:word@host/x", f"https://{X}@host/x"),
        ("https://hooks.example/x?token=abc&n=1 next", f"https://hooks.example/x?{X} next"),
        ("Authorization: Bearer abcdef.123456", f"Authorization: Bearer {X}"),
        ("sent hf_AbCdEfGh12345 twice", f"sent {X} twice"),
        ('{"api_key": "abc", "tokens": 5}', f'{{"api_key": "{X}", "tokens": 5}}'),
        (r"{\"password\": \"abc\"}", rf"{{\"password\": \"{X}\"}}"),
        ('["--hub-token", "abc", "--steps", "5"]', f'["--hub-token", "{X}", "--steps", "5"]'),
        ("AWS_SECRET_ACCESS_KEY=abc/def+g", f"AWS_SECRET_ACCESS_KEY={X}"),
        ("it said s3cret-word.", f"it said {X}."),
        ('it said "s3cret-\\"word\\""', f'it said "{X}"'),
        ("/home/ada/run /root/x /root", "~/run ~/x ~"),
        ("/mine/of/all/x, /mine/of/all", "~/x, ~"),
    ],
)
def test_a_secret_is_masked_wherever_it_stands(
    text: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/mine/of/all")
    secrets = {"SERVICE_PASSWORD": "s3cret-word", "OTHER_TOKEN": 's3cret-"word"', "SHORT_TOKEN": "it"}
    assert mask(text, environ=secrets) == shown


@pytest.mark.parametrize(
    "text",
    [
        '{"tokens": 5, "eot_token": 3, "token": null, "key": "9f8e7d6c5b4a"}',
        "token_file: /etc/stoker/hub-token\ntokenizer:\n  train:\n",
        "http://127.0.0.1:9812/metrics of stage_shard",
        "/srv/home/rooted /rootfs /var/lib/stoker",
        "no token was sent, the password is refused",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert mask(text, environ={"PATH": "/usr/bin", "TOKENS": "3"}) == text


def test_the_token_of_the_file_is_masked_as_a_word() -> None:
    assert mask("a plain-token-word here", "plain-token-word", environ={}) == f"a {X} here"


@pytest.mark.parametrize(
    ("behind_s", "outcome"), [(-5, []), (30, []), (3600, ["warning"]), (2 * DAY_S, ["broken"])]
)
def test_a_clock_behind_what_was_written_is_found(
    pipeline: Pipeline, behind_s: int, outcome: list[str]
) -> None:
    record = pipeline.layout.sources / "one.json"
    record.touch()
    os.utime(record, (time.time() + behind_s,) * 2)
    found = list(checks.clock(pipeline))
    assert outcomes(found) == outcome
    assert not outcome or str(record) in found[0].what


@pytest.mark.parametrize(("workers", "left", "outcome"), [(3, 3, []), (3, 2, ["warning"]), ("auto", 1, [])])
def test_builders_that_may_take_more_than_there_is_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: object, left: int, outcome: list[str]
) -> None:
    monkeypatch.setattr("stoker.cli.doctor.checks.MemoryWatch.sample", lambda _self: MemoryFacts(left << 30))
    made = load_text(tmp_path, MINIMAL + f"shard: {{workers: {workers}}}\n")
    made.layout.create()
    assert outcomes(checks.memory(made)) == outcome


def test_a_page_of_a_running_daemon_that_does_not_answer_is_found(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = {"running": True, "metrics": "127.0.0.1:1"}  # where nothing ever listens
    monkeypatch.setattr("stoker.cli.doctor.checks.read_status", lambda _layout: {STAGE_SHARD: status})
    (found,) = checks.metrics(pipeline)
    assert found.outcome == "warning"
    assert found.what.startswith("http://127.0.0.1:1/metrics of stage_shard does not answer: ")


def test_a_state_on_a_network_is_found(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STOKER_ALLOW_NETWORK_STATE", raising=False)
    monkeypatch.setattr("stoker.config.load.on_network", lambda _path: "nfs")
    with pytest.raises(ConfigError, match="network file system"):
        list(checks.configuration(pipeline))


def test_claims_beyond_the_free_room_are_found(pipeline: Pipeline) -> None:
    assert not list(checks.disks(pipeline))
    device = pipeline.state.stat().st_dev
    write_claims(pipeline.layout, STAGE_SHARD, [Claim(device, str(pipeline.hot), "sets", 1 << 60)])
    assert {one.what.partition(":")[0] for one in checks.disks(pipeline)} == {"state", "hot"}


@pytest.mark.parametrize(
    ("mode", "bits", "may"),
    [(0o755, os.R_OK | os.X_OK, True), (0o755, os.W_OK, False), (0o750, os.R_OK, False), (0o700, 0, True)],
)
def test_another_user_may_what_the_mode_says(tmp_path: Path, mode: int, bits: int, may: bool) -> None:
    tmp_path.chmod(mode)
    assert allows(tmp_path, os.geteuid() + 54_321, bits) is may


def test_a_hub_that_answers_is_well_and_a_refusal_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "wrong")
    with LoopbackHub(tmp_path / "hub") as hub:
        hub.put("a.parquet", b"1234")
        text = MINIMAL.replace(
            "{kind: folder, path: parquet}", f'{{kind: hub, repo: {REPO}, endpoint: "{hub.endpoint}"}}'
        )
        made = load_text(tmp_path, text)
        assert not checks.source(made)
        hub.fault("status", on="api", code=401, times=-1)
        with pytest.raises(UnavailableError, match=f"{REPO}.*token"):
            checks.source(made)


def test_findings_come_with_a_remedy_and_the_worst_first_folded_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert told("broken", "a is b; c; do d") == Finding("broken", "a is b; c", "do d")
    assert told("broken", "a is b") == Finding("broken", "a is b")
    names = [name for name, *_ in CHECKS]
    found = dict.fromkeys(names, ()) | {
        "config": [["warning", "it is odd", ""]],
        "disks": [["skipped", "not looked at", ""]],
    }
    del found["source"]
    rows = {row["name"]: row for row in _rows(found, "/x.yaml")}
    assert rows["config"]["do"] == "`stoker config check /x.yaml` names the line"
    assert {row["name"]: row for row in _rows({}, "/x.yaml")}["open files"]["do"].startswith(
        "raise LimitNOFILE="
    )
    assert rows["source"]["outcome"] == UNHEARD[0] and rows["source"]["do"]
    assert [*_lines([rows["config"], rows["disks"], rows["logs"]])] == [
        "warning  config: it is odd",
        "         `stoker config check /x.yaml` names the line",
        "skipped  disks: not looked at",
        "ok       logs",
    ]
    monkeypatch.setattr(os, "isatty", lambda _: True)
    monkeypatch.setattr(command, "columns_of", lambda _: 30)
    assert [*_lines([rows["config"]])][1:] == [
        "         `stoker config check",
        "         /x.yaml` names the",
        "         line",
    ]
    assert len(DAEMONS) == 3 and len(set(names)) == len(names)
