"""A wrong pipeline file is told with file, line, key, what is wrong and what to write instead."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stoker.config.load import load_pipeline
from stoker.config.problems import FORMER
from stoker.store.errors import ConfigError
from support.config_files import MINIMAL, load_text, problems_of, write_pipeline

A, YARN = "{name: a, from: 4}", "yarn: {factor: 2, original_seq_len"
PHASES = [  # of a run, its phases, what is told of them
    ("tokens: 1B", A, "train.phases: phases begin at steps, and a run by tokens has no fixed last one"),
    ("steps: 10", f"{A}, {{name: b, from: 3}}", "train.phases[1].from: begins after step 3, and what is bef"),
    ("steps: 10", f"{A}, {{name: b, from: 4}}", "train.phases[1].from: begins after step 4, and what is bef"),
    ("steps: 10", f"{A}, {{name: a, from: 5}}", "train.phases[1].name: an earlier phase has the name a"),
    ("steps: 10", "{name: a, from: decay}", "train.phases[0].from: decay is where wsd begins to fall, and"),
    ("steps: 10", "{name: a, from: 10}", "train.phases[0].from: step 10 is not below the run's last, 10"),
    (
        "steps: 10\n  schedule: {name: wsd, warmup_steps: 1}",
        "{name: a, from: 9}, {name: b, from: decay}",
        "train.phases[1].from: begins after step 8",
    ),
    ("steps: 10", "{name: a, from: 0}", "train.phases[0].from: must be decay, or 1 or more"),
    (
        "steps: 10",
        f"{{name: a, from: 4, rope: {{theta: 5e5, {YARN}: 2048}}}}}}",
        "train.phases[0].rope: takes theta or yarn; write one of the two",
    ),
    ("steps: 10", "{name: a, form: 4}", "train.phases[0].form: unknown key; did you mean 'from'?"),
    (
        "steps: 10",
        f"{{name: a, from: 4, rope: {{{YARN}: 2048, beta_fast: 1}}}}}}",
        "train.phases[0].rope.yarn: beta_fast must be above beta_slow",
    ),
    (
        "steps: 10",
        "{name: a, from: 4, micro_batch: 7}",
        "train.phases[0].micro_batch: micro_batch 7 does not",
    ),
    (
        "steps: 10\n  micro_batch: 4",
        "{name: a, from: 4, global_batch: 6}",
        "train.phases[0].global_batch: ",
    ),
    (
        "steps: 10",
        f"{{name: a, from: 4, rope: {{{YARN}: 99}}}}}}",
        "train.phases[0].rope.yarn.original_seq_len: 99 is not 2048, with which",
    ),
]
SUITE = "evaluations: [{suite: a.yaml, at: [finish]}]"


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("steps: 10", "stpes: 10\n  tokens: 1M", ["mine.yaml:8: train.stpes: unknown key", "'steps'"]),
        ("hot: hot", "hto: x\nhot: hot", ["mine.yaml:3: hto: unknown key", "did you mean 'hot'?"]),
        ("  model: tiny", "  model: tiny\n  lr: 0.1", ["mine.yaml:10: train.lr", "train.optimizer.lr"]),
        (
            "  model: tiny",
            "  model: tiny\n  zzqq: 0.1",
            ["mine.yaml:10: train.zzqq", "known here: run, seed"],
        ),
        ("steps: 10", "steps: 10\n  steps: 20", ["mine.yaml:9: train.steps", "already in line 8"]),
        ("model: tiny", "model: tny", ["mine.yaml:9: train.model", "did you mean 'tiny'?"]),
        ("model: tiny", "model: enormous", ["mine.yaml:9: train.model", "124m, 474m, demo, tiny"]),
        ("steps: 10", "steps:", ["mine.yaml:8: train.steps: is required"]),
        ("steps: 10", "steps: 10\n  on_checkpoint: cp 'a", ["mine.yaml:9: train.on_checkpoint", "quote"]),
        ("steps: 10", "steps: 10\n  on_checkpoint: ''", ["mine.yaml:9: train.on_checkpoint"]),
        ("steps: 10", "steps: 10\n  on_promoted: 'a \"b'", ["mine.yaml:9: train.on_promoted", "quote"]),
        ("kind: folder", "kind: fodler", ["mine.yaml:6: dataset.source.kind", "did you mean 'folder'?"]),
        ("name: prose", "name: {a: 1}", ["mine.yaml:5: dataset.name", "is a mapping"]),
        ("train:", "plan: 7\ntrain:", ["mine.yaml:7: plan: must be a mapping", "not '7'"]),
        ("train:", "notify: mail\ntrain:", ["mine.yaml:7: notify: must be a mapping"]),
        *(
            ("train:", f"notify:\n  {line}\ntrain:", [f"mine.yaml:8: notify.{error}"])
            for line, error in (
                ("routes: mail", "routes: must be a list"),
                ("routes: [{}]", "routes[0]: needs one of url, url_file and command; write one of the three"),
                ("routes: [{url: a, command: b}]", "routes[0]: needs one of url, url_file and command"),
                ("routes: [{url: {}}]", "routes[0].url: is a mapping; write text"),
                ("routes: [{urll: a}]", "routes[0].urll: unknown key; did you mean 'url'?"),
                ("routes: [{url: a, level: err}]", "routes[0].level: 'err' is not one of warning, error"),
                ("routes: [{url: a, quiet: 22-7}]", "routes[0].quiet: '22-7' is not a time from one hour to"),
                ("routes: [{url: a, most_an_hour: 0}]", "routes[0].most_an_hour: must be 1 or more"),
                ("daily: '7:30'", "daily: '7:30' is not a time of day; write one from 00:00 to 23:59"),
                ("timezone: Europe/Bonn", "timezone: there is no time zone 'Europe/Bonn'; write one like"),
                ("timezone: Europe", "timezone: there is no time zone 'Europe'"),
                ("timezone: ../x", "timezone: there is no time zone '../x'"),
            )
        ),
        *(
            ("train:", f"{lines}\ntrain:", [f"mine.yaml:{error}"])
            for lines, error in (
                (
                    "evaluations: [{suite: zzz, at: [finish]}]",
                    "7: evaluations[0].suite: there is no suite named 'zzz'",
                ),
                (f"{SUITE[:-2]}, att: 1}}]", "7: evaluations[0].att: unknown key; did you mean 'at'?"),
                (
                    "evaluations: [{suite: a.yaml, every_step: 1}]\npromote: {primary: a/b}",
                    "7: evaluations[0].every_step: unknown key; did you mean 'every_steps'?",
                ),
                (
                    "evaluations: [{suite: a.yaml, at: [end]}]",
                    "7: evaluations[0].at[0]: 'end' is not one of mile",
                ),
                (
                    "evaluations: [{suite: a.yaml}]",
                    "7: evaluations: no suite is ever due; write at, every",
                ),
                (
                    f"{SUITE[:-1]}, {{suite: b.yaml, where: between}}]",
                    "7: evaluations: no launch ends for a suite with where: between and no time",
                ),
                (
                    f"{SUITE[:-1]}, {{suite: b/a.yaml}}]\npromote: {{primary: a/b}}",
                    "7: evaluations: two suites",
                ),
                ("promote: {primary: a/b}", "7: promote: no suite is ever due; write at"),
                (f"{SUITE}\npromote: {{}}", "8: promote.primary: is required"),
                *(
                    (f"{SUITE}\npromote: {{primary: {lines}}}", f"8: promote.{error}")
                    for lines, error in (
                        ("bits", "primary: 'bits' is not a metric; write TASK/METRIC, such as heldout/bits"),
                        ("a/b, guards: {a/b: -1}", "guards.a/b: must be 0 or more"),
                        ("a/b, guards: {ab: 1}", "guards.ab: 'ab' is not a metric"),
                        ("a/b, floors: {a/b: high}", "floors.a/b: 'high' is not a number"),
                        ("a/b, gate: smoke", "gate: is none of evaluations, which lists a; add it"),
                        ("a/b, on_regression: stop", "on_regression: 'stop' is not one of event, pause"),
                    )
                ),
            )
        ),
        ("hot: hot\n", "", ["mine.yaml:1: hot: is required"]),
        ("model: tiny", "model: {layers: 2, width: 64, heads: 4}", ["train.model.ffn_width: is required"]),
    ],
)
def test_each_wrong_key_is_told_with_its_line_and_the_right_one(
    tmp_path: Path, old: str, new: str, told: list[str]
) -> None:
    problems = problems_of(tmp_path, MINIMAL.replace(old, new, 1))
    assert any(all(part in problem for part in told) for problem in problems), problems
    assert len(problems) == 1


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("name: mine", "name: no", ["mine.yaml:1: name: 'no'", "quotes"]),
        ("name: prose", "name: on", ["dataset.name: 'on'", "true or false"]),
        ("name: prose", "name: 2026-11-20", ["dataset.name", "a date", "quotes"]),
        ("name: prose", "name: 12", ["dataset.name", "a number", "quotes"]),
        ("name: prose", "name: 1e6", ["dataset.name: '1e6'", "a number", "quotes"]),
        ("train:", "plan: {order: no}\ntrain:", ["plan.order", "not one of listing, arrival"]),
        ("steps: 10", "steps: 012", ["mine.yaml:8: train.steps: '012'", "octal"]),
        ("steps: 10", "steps: 12:30", ["mine.yaml:8: train.steps: '12:30'", "base 60"]),
        ("steps: 10", "steps: yes", ["train.steps: 'yes' is not a whole number"]),
        ("steps: 10", "steps: 0x10", ["train.steps: '0x10' is not a whole number"]),
        ("steps: 10", "steps: 1.5", ["train.steps: '1.5' is not a whole number"]),
        ("steps: 10", "steps: 99999999T", ["train.steps: '99999999T' is larger than any here"]),
        ("hot: hot", "hot: $HOME/hot", ["hot: '$HOME/hot': `$` is not expanded"]),
        ("steps: 10", "steps: -5", ["train.steps: '-5' is below zero"]),
        ("steps: 10", "steps: 0", ["train.steps: must be 1 or more"]),
        ("steps: 10", "steps: .inf", ["train.steps: '.inf' is not a whole number"]),
        ("steps: 10", "steps: 10\n  deterministic: 1", ["train.deterministic: '1' is not true or false"]),
        (
            "steps: 10",
            "steps: 10\n  launcher: {devices: [0]}",
            ["train.launcher.devices: this version does not choose devices yet; write auto"],
        ),
        ("train:", "stage: {settle: 12:30}\ntrain:", ["stage.settle: '12:30'", "12h30m"]),
        ("train:", "stage: {settle: 30}\ntrain:", ["stage.settle: '30' is not a duration", "30s"]),
        ("train:", "stage: {free_floor: 80G}\ntrain:", ["stage.free_floor: 'G' is not a unit", "64MiB"]),
        ("train:", "shard: {val_ratio: 1}\ntrain:", ["shard.val_ratio: must be less than 1"]),
        ("train:", "shard: {val_ratio: nan}\ntrain:", ["shard.val_ratio: 'nan' is not a number"]),
        ("train:", "shard: {val_ratio: 1e999}\ntrain:", ["shard.val_ratio: 1e999 is larger than any number"]),
        (
            "name: prose",
            "name: prose\n  filters: {languages: [en, no]}",
            ["dataset.filters.languages[1]: 'no'", "quotes"],
        ),
        ("name: prose", "name: !!python/object:os.system prose", ["dataset.name: the tag", "no meaning"]),
        ("state: state", "state: ~/state", ["state: '~/state'", "not expanded"]),
        ("state: state", r'state: "a\nUser=root"', ["state: holds a NUL character or a line break"]),
    ],
)
def test_yaml_traps_are_errors_that_say_what_to_write(
    tmp_path: Path, old: str, new: str, told: list[str]
) -> None:
    problems = problems_of(tmp_path, MINIMAL.replace(old, new, 1))
    assert any(all(part in problem for part in told) for problem in problems), problems


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("name: mine", "name: other", "mine.yaml:1: name: 'other' is not the file's name 'mine'"),
        ("name: mine", "name: Mine", "name: 'Mine' is not a name"),
        ("hot: hot", "hot: state", "mine.yaml:3: hot: is the same directory as state"),
        ("hot: hot", "hot: /", "hot: is the root of the file system"),
        ("hot: hot", "hot: hot\nwarm: hot", "mine.yaml:4: warm: is the same directory as hot"),
        ("hot: hot", "hot: hot\nwarm: hot/warm", "warm: lies inside hot"),
        ("state: state", "state: hot/state", "state: lies inside hot"),
        ("path: parquet", "path: hot/parquet", "dataset.source.path: lies inside hot"),
        ("state: state", "state: parquet/state", "mine.yaml:2: state: lies inside dataset.source.path"),
        ("hot: hot", "hot: parquet", "dataset.source.path: is the same directory as hot"),
        ("hot: hot", "hot: hot\nwarm: parquet/warm", "mine.yaml:4: warm: lies inside dataset.source.path"),
        ("path: parquet", "path: parquet, repo: a/b", "dataset.source.repo: means nothing for kind: folder"),
        ("{kind: folder, path: parquet}", "{kind: folder}", "dataset.source.path: is required"),
        ("{kind: folder, path: parquet}", "{kind: hub}", "dataset.source.repo: is required for kind: hub"),
        ("{kind: folder, path: parquet}", "{kind: urls}", "dataset.source.urls_file: is required"),
        (
            "{kind: folder, path: parquet}",
            "{kind: urls, urls_file: l.txt, token_file: t}",
            "dataset.source.token_file: means nothing for kind: urls",
        ),
        (
            "{kind: folder, path: parquet}",
            "{kind: urls, urls_file: l.txt, follow: new_commits}",
            "dataset.source.follow: means nothing for kind: urls",
        ),
        ("steps: 10", "steps: 10\n  tokens: 1B", "train.tokens: steps and tokens exclude each other"),
        ("  steps: 10\n", "", "train.steps: is required; write how many steps the run takes"),
        ("  steps: 10\n", "  tokens: 7\n", "train.tokens: 7 tokens do not fill one batch of 262144"),
        ("steps: 10", "steps: 10\n  micro_batch: 7", "train.micro_batch: 7 does not divide global_batch 128"),
        ("steps: 10", "steps: 10\n  seq_len: 0", "train.seq_len: must be 2 or more"),
        (
            "steps: 10",
            "steps: 10\n  precision: fp16",
            "train.precision: this version does not train in 'fp16'",
        ),
        (
            "steps: 10",
            "steps: 10\n  precision: float8_e4m3fn",
            "this version does not train in 'float8_e4m3fn'",
        ),
        ("steps: 10", "steps: 10\n  ema: 0.999", "train.ema: must be a mapping"),
        ("steps: 10", "steps: 10\n  ema: {decay: 1}", "train.ema.decay: must be less than 1"),
        ("steps: 10", "steps: 10\n  ema: {decay: -0.1}", "train.ema.decay: must be 0 or more"),
        (
            "steps: 10",
            "steps: 10\n  optimizer: {ema: 1}",
            "train.optimizer.ema: a moving average of the weights is train.ema",
        ),
        (
            "steps: 10",
            "steps: 10\n  rope_scaling: {factor: 2}",
            "train.rope_scaling: a longer context is a phase",
        ),
        ("steps: 10", "steps: 10\n  launcher: {processes: 2}", "this version trains in one process only"),
        (
            "model: tiny",
            "model: {layers: 1, width: 64, heads: 3, ffn: 64}",
            "train.model.heads: 3 does not divide width 64",
        ),
        (
            "model: tiny",
            "model: {layers: 1, width: 6, heads: 2, ffn: 64}",
            "train.model.heads: width / heads is 3; RoPE needs it even",
        ),
        (
            "train:",
            "tokenizer: {file: t.json, train: {vocab_size: 500}}\ntrain:",
            "tokenizer.file: train and file exclude each other",
        ),
        ("train:", "tokenizer: {train: {vocab_size: 100}}\ntrain:", "vocab_size: must be 257 or more"),
        ("train:", "  tokens_column: ids\ntrain:", "tokenizer: tokens_column needs the tokenizer that made"),
        *(
            ("train:", f"  tokens_column: ids\n  {other}\ntokenizer: {{file: t.json}}\ntrain:", problem)
            for other, problem in (
                ("text_column: text", "dataset.text_column: text_column and tokens_column exclude"),
                ("filters: {max_chars: 900}", "dataset.filters.max_chars: reads text, and"),
            )
        ),
        ("train:", "metrics: {ports: {train: 9811}}\ntrain:", "metrics.ports.train: 9811 is also download's"),
        ("train:", "metrics: {ports: {train: 70000}}\ntrain:", "ports.train: must be 65535 or less"),
        (
            "hot: hot",
            "hot: hot\nwarm: warm\nshard: {release: after_proof}",
            "shard.release: after_proof is for",
        ),
        ("train:", "shard: {release: after_sync}\ntrain:", "shard.release: after_sync needs warm"),
        (
            "steps: 10",
            "steps: 10\n  schedule: {warmup_steps: 1, decay: 0.1}",
            "train.schedule.decay: means nothing for name: cosine; remove it, or name wsd",
        ),
        (
            "steps: 10",
            "steps: 10\n  schedule: {name: wsd, warmup_steps: 1, decay: 0}",
            "train.schedule.decay: must be above 0; without a decay, write name: constant",
        ),
        (
            "steps: 10",
            "steps: 10\n  schedule: {name: wsd, warmup_steps: 9}",
            "train.schedule.warmup_steps: 9 steps of warm-up and 2 of decay are more than the run's 10",
        ),
        (
            "steps: 10",
            "steps: 10\n  evaluate: {patience: 3, tokens: 0}",
            "patience: no evaluation would count",
        ),
        (
            "steps: 10",
            "steps: 10\n  evaluate: {patience: 3, every_steps: null}",
            "patience: no evaluation would count",
        ),
        *(
            ("steps: 10", f"{of_run}\n  phases: [{phases}]", f"mine.yaml:{9 + of_run.count(chr(10))}: {told}")
            for of_run, phases, told in PHASES
        ),
    ],
)
def test_contradictions_between_keys_are_told(tmp_path: Path, old: str, new: str, told: str) -> None:
    problems = problems_of(tmp_path, MINIMAL.replace(old, new, 1))
    assert any(told in problem for problem in problems), problems
    assert len(problems) == 1


@pytest.mark.parametrize(
    ("step", "told"),
    [
        ("'step (\\d+'", "train.external.step: is no regular expression: missing ), unterminated subpattern"),
        ("'a{99999999999}'", "train.external.step: is no regular expression: "),
        ("'step \\d+'", "train.external.step: has no group for the step; write one such as 'step (?P<step>"),
        (
            "'(?P<step>\\d+) (?P<los>.*)'",
            "train.external.step: has an unknown group los; besides step there may be",
        ),
    ],
)
def test_an_expression_for_a_step_must_find_one(tmp_path: Path, step: str, told: str) -> None:
    (problem,) = problems_of(tmp_path, own_trainer(step))
    assert told in problem


def own_trainer(step: str) -> str:
    own = f"steps: 10\n  command: [x]\n  external: {{step: {step}}}"
    return MINIMAL.replace("  model: tiny\n", "").replace("steps: 10", own)


@pytest.mark.parametrize("step", ["'(?P<step>\\d+) (?P<loss>.*)'", "'(\\d+)'", "auto", "null"])
def test_an_expression_with_a_group_a_known_word_or_none_is_right(tmp_path: Path, step: str) -> None:
    load_pipeline(write_pipeline(tmp_path, own_trainer(step)))


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("steps: 10", "steps: 10\n  launcher: {processes: 2}", "train.launcher.processes"),
    ],
)
def test_what_this_version_does_not_do_is_refused_by_its_key(
    tmp_path: Path, old: str, new: str, key: str
) -> None:
    problems = problems_of(tmp_path, MINIMAL.replace(old, new, 1))
    assert [f": {key}: this version " in problem for problem in problems] == [True], problems


def test_all_problems_are_told_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = MINIMAL.replace("steps: 10", "stpes: 10\n  micro_batch: 7").replace("hot: hot", "hot: hot\nhot: x")
    text = text.replace("name: mine", "name: other").replace("model: tiny", "model: tinny\n  seq_len: 012")
    problems = problems_of(tmp_path, text)
    assert [problem.split(": ")[:2] for problem in problems] == [
        ["mine.yaml:1", "name"],
        ["mine.yaml:4", "hot"],
        ["mine.yaml:9", "train.stpes"],
        ["mine.yaml:10", "train.micro_batch"],
        ["mine.yaml:11", "train.model"],
        ["mine.yaml:12", "train.seq_len"],
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("plan:\n  order listing\n  seed: 1\n", "check the indentation, and the colon of line 2, or quote"),
        ("plan: {order: listing\n\ntrain:\n  steps: 1\n", "quotes and brackets from line 1 on"),
    ],
)
def test_a_colon_or_a_bracket_that_lacks_is_looked_for_in_the_line_that_lacks_it(
    tmp_path: Path, text: str, told: str
) -> None:
    assert told in problems_of(tmp_path, text)[0]


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "mine.yaml:1: is empty"),
        (b"# only a remark\n", "mine.yaml:1: is empty"),
        (b"- a\n- b\n", "mine.yaml:1: holds no keys"),
        (b"just words\n", "mine.yaml:1: holds no keys"),
        (b"name: mine\n---\nname: two\n", "mine.yaml:2: column 1: a second document begins here"),
        (b"name: mine\ndataset:\n\tname: x\n", "mine.yaml:3: column 1: a tab"),
        (b"name: mine\nhot: [a\nstate: b\n", "mine.yaml:3"),
        (b"name: mine\nhot: a: b\n", "mine.yaml:2: column 7: a second `key: value`"),
        (b"name: mine\nhot: caf\xe9\n", "mine.yaml:2: byte 0xe9 is not UTF-8"),
        (b"name: mine\nhot: a\x00b\n", "mine.yaml:2: holds the character"),
        (b"name: *nobody\n", "mine.yaml:1: column 7: not YAML: found undefined alias"),
        (b"name: &a [*a]\n", "mine.yaml:1: name[0] is an alias; write its value out"),
        (b"name: &a mine\nhot: *a\n", "mine.yaml:1: hot is an alias"),
        (b"a: " + b"[" * 1200, "mine.yaml:1: is nested too deeply"),
        (b"#" * (1 << 21), "mine.yaml: is larger than 1 MiB"),
    ],
)
def test_a_file_that_is_no_pipeline_is_told_in_a_sentence(tmp_path: Path, data: bytes, told: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes(data)
    with pytest.raises(ConfigError) as caught:
        load_pipeline(path, {})
    assert str(caught.value).startswith(f"{tmp_path}/{told}")
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_told_why(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file or directory; check the path"):
        load_pipeline(tmp_path / "none.yaml", {})
    with pytest.raises(ConfigError, match="is a directory; name the pipeline's YAML file"):
        load_pipeline(tmp_path, {})
    with pytest.raises(ConfigError, match="cannot be read"):
        load_pipeline(write_pipeline(tmp_path) / "below", {})


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_told_so(tmp_path: Path) -> None:
    path = write_pipeline(tmp_path)
    path.chmod(0)
    with pytest.raises(ConfigError, match="read it: chgrp it to its group"):
        load_pipeline(path, {})


def test_a_key_of_the_version_before_is_refused_with_what_holds_in_its_place(tmp_path: Path) -> None:
    for key, instead in FORMER.items():
        section, *inner = key.split(".")
        body = ": {".join(inner) + ": 1" + "}" * (len(inner) - 1)
        text = MINIMAL + f"{section}: {{{body}}}\n"
        if section == "train":
            text = MINIMAL.replace("train:\n", f"train:\n  {body}\n")
        problems = problems_of(tmp_path, text)
        assert any(f"{key}: is no key any more: {instead}" in line for line in problems), problems
        variable = f"STOKER_{key.replace('.', '__').upper()}"
        (problem,) = problems_of(tmp_path, MINIMAL, {variable: "1"})
        assert problem == f"environment {variable}: sets no key of the pipeline file; {instead}; unset it"


def test_an_override_that_names_no_key_is_told_the_right_one(tmp_path: Path) -> None:
    told = problems_of(tmp_path, MINIMAL, {"STOKER_TRAIN__STPES": "5"})
    assert told == [
        "environment STOKER_TRAIN__STPES: sets no key of the pipeline file; did you mean STOKER_TRAIN__STEPS?"
    ]


def test_a_wrong_value_of_an_override_names_the_variable_and_the_key(tmp_path: Path) -> None:
    told = problems_of(tmp_path, MINIMAL, {"STOKER_TRAIN__STEPS": "012", "STOKER_HOT__X": "1"})
    assert any("STOKER_HOT__X: sets no key" in line for line in told)
    assert any(line.startswith("environment STOKER_TRAIN__STEPS: train.steps: '012'") for line in told)


def test_an_override_inside_what_the_file_gives_as_a_word_is_refused(tmp_path: Path) -> None:
    told = problems_of(tmp_path, MINIMAL, {"STOKER_TRAIN__MODEL__LAYERS": "3"})
    assert told == [
        "environment STOKER_TRAIN__MODEL__LAYERS: train.model.layers: cannot be set: "
        "train.model is not a mapping in the file; write it as one there"
    ]


def test_state_on_a_network_file_system_is_refused_unless_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stoker.config.load.on_network", lambda path: "nfs4")
    assert problems_of(tmp_path, MINIMAL) == [
        "mine.yaml:2: state: lies on a network file system (nfs4); name a local disk, "
        "or set STOKER_ALLOW_NETWORK_STATE=1"
    ]
    assert load_text(tmp_path, MINIMAL, {"STOKER_ALLOW_NETWORK_STATE": "1"}).name == "mine"


def test_windows_cannot_be_skipped_for_a_trainer_that_reads_no_plan(tmp_path: Path) -> None:
    own = "steps: 10\n  command: [python, train.py]\n  external: {protocol: client}"
    text = MINIMAL.replace("steps: 10", own) + "supervise: {on_spike: rollback}\n"
    problems = problems_of(tmp_path, text)
    assert any(": supervise.on_spike: " in problem for problem in problems), problems
    assert load_text(tmp_path, text.replace("client", "full")).supervise.on_spike == "rollback"
