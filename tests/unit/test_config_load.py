"""What a right pipeline file means: defaults < file < environment, exact units, paths from the file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from stoker.config import units
from stoker.config.checks import disk_faults, disk_notes, notes
from stoker.config.load import examples_dir, load_pipeline
from stoker.config.places import network_type
from stoker.config.schema_train import ModelShape
from stoker.config.show import effective_yaml, masked
from support.config_files import MINIMAL, load_text, problems_of, write_pipeline

EXAMPLES = sorted(examples_dir().glob("*.yaml"))
MODELS = sorted((examples_dir() / "models").glob("*.yaml"))


def test_a_minimal_file_gets_the_defaults_and_absolute_paths(tmp_path: Path) -> None:
    pipeline = load_text(tmp_path, MINIMAL)
    assert pipeline.file == tmp_path / "mine.yaml"
    assert (pipeline.state, pipeline.hot, pipeline.warm) == (tmp_path / "state", tmp_path / "hot", None)
    assert pipeline.dataset.source.path == tmp_path / "parquet"
    assert pipeline.layout.state == tmp_path / "state"
    assert pipeline.hot_layout.shards("prose") == tmp_path / "hot" / "shards" / "prose"
    assert pipeline.tokenizer.train is not None
    assert (pipeline.tokenizer.train.vocab_size, pipeline.tokenizer.train.train_bytes) == (32000, 200_000_000)
    assert (pipeline.stage.settle, pipeline.stage.queue_bytes) == (180.0, 20 * 2**30)
    assert (pipeline.train.seq_len, pipeline.train.global_batch, pipeline.train.micro_batch) == (
        2048,
        128,
        "auto",
    )
    assert (pipeline.train.checkpoint.every, pipeline.supervise.stop_time) == (1800.0, 300.0)
    assert (pipeline.plan.epochs, pipeline.plan.segment_tokens) == (None, 10**9)
    assert pipeline.shard.release == "after_proof"
    assert pipeline.train.model == ModelShape(layers=2, width=96, heads=4, kv_heads=4, ffn_width=256)


def test_a_model_in_a_record_leaves_out_the_later_keys_that_are_off() -> None:
    numbers = {"layers": 2, "width": 96, "heads": 4, "kv_heads": 4, "ffn_width": 256}
    first = {**numbers, "rope_theta": 10000.0, "norm_eps": 1e-5, "tie_embeddings": False}
    assert ModelShape(**numbers, tie_embeddings=False).body() == first
    assert ModelShape(**numbers, tie_embeddings=False, qk_norm=True).body() == {**first, "qk_norm": True}


def test_a_pipeline_is_frozen(tmp_path: Path) -> None:
    with pytest.raises(ValidationError):
        load_text(tmp_path, MINIMAL).train.steps = 11


def test_state_is_below_var_lib_stoker_where_the_file_says_nothing(tmp_path: Path) -> None:
    pipeline = load_text(tmp_path, MINIMAL.replace("state: state\n", ""))
    assert pipeline.state == Path("/var/lib/stoker/mine")


def test_release_waits_for_the_warm_copy_where_there_is_a_warm_store(tmp_path: Path) -> None:
    pipeline = load_text(tmp_path, MINIMAL.replace("hot: hot", "hot: hot\nwarm: warm"))
    assert pipeline.shard.release == "after_sync"


def test_wsd_decays_over_a_fifth_of_the_steps_where_nothing_else_is_written(tmp_path: Path) -> None:
    text = MINIMAL.replace("steps: 10", "steps: 10\n  schedule: {name: NAME, warmup_steps: 8}")
    found = {
        name: load_text(tmp_path, text.replace("NAME", name)).train.schedule
        for name in ("wsd", "constant", "cosine")
    }
    assert {name: one.decay for name, one in found.items()} == {"wsd": 0.2, "constant": None, "cosine": None}
    assert [found[name].decay_begins(10) for name in ("wsd", "constant")] == [8, None]


@pytest.mark.parametrize(
    ("written", "key", "value"),
    [
        ("steps: 1e6", "steps", 1_000_000),
        ("steps: 20K", "steps", 20_000),
        ("tokens: 1.5B", "tokens", 1_500_000_000),
        ('steps: "300"', "steps", 300),
        ("steps: 5\n  deterministic: yes", "deterministic", True),
        ("steps: 5\n  deterministic: off", "deterministic", False),
        ("steps: 5\n  precision: bf16", "precision", "bfloat16"),
        ("steps: 5\n  seed: 0", "seed", 0),
    ],
)
def test_values_are_read_exactly_where_they_can_mean_one_thing(
    tmp_path: Path, written: str, key: str, value: object
) -> None:
    train = load_text(tmp_path, MINIMAL.replace("steps: 10", written)).train
    assert getattr(train, key) == value


@pytest.mark.parametrize("written", ["3e-4", "3.0e-4", "0.0003", ".0003", "3E-4"])
def test_a_learning_rate_is_read_in_every_spelling(tmp_path: Path, written: str) -> None:
    text = MINIMAL.replace("steps: 10", f"steps: 10\n  optimizer: {{lr: {written}}}")
    assert load_text(tmp_path, text).train.optimizer.lr == 3e-4


def test_the_environment_wins_over_the_file_and_other_variables_are_left_alone(tmp_path: Path) -> None:
    environ = {
        "STOKER_TRAIN__STEPS": "25",
        "STOKER_TRAIN__CHECKPOINT__EVERY": "90s",
        "STOKER_DATASET__SOURCE__INCLUDE": '["a*.parquet", b.parquet]',
        "STOKER_DATASET__FILTERS__AT_LEAST": "{language_score: 0.65}",
        "STOKER_NOTIFY_SOCKET": "/run/x",
        "STOKER_TORCH_INDEX": "https://example.org",
        "STOKER_TEST_SEED": "4",
        "HOME": "/root",
    }
    pipeline = load_text(tmp_path, MINIMAL, environ)
    assert (pipeline.train.steps, pipeline.train.checkpoint.every) == (25, 90.0)
    assert pipeline.dataset.source.include == ("a*.parquet", "b.parquet")
    assert pipeline.dataset.filters.at_least == {"language_score": 0.65}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_loads_and_what_is_shown_loads_to_the_same(path: Path, tmp_path: Path) -> None:
    pipeline = load_pipeline(path, {})
    shown = write_pipeline(tmp_path, effective_yaml(pipeline), path.stem)
    assert load_pipeline(shown, {}).model_dump() == pipeline.model_dump()


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_every_model_can_be_named(path: Path, tmp_path: Path) -> None:
    model = load_text(tmp_path, MINIMAL.replace("model: tiny", f"model: {path.stem}")).train.model
    assert model.layers == yaml.safe_load(path.read_text())["layers"]


def test_the_full_example_names_every_default_of_the_schema(tmp_path: Path) -> None:
    written = load_pipeline(examples_dir() / "fineweb.yaml", {}).model_dump()
    bare = "name: mine\nhot: h\ndataset: {name: d, source: {kind: folder, path: p}}\ntrain: {steps: 600000}"
    default = load_text(tmp_path, bare).model_dump()
    for key in ("name", "state", "hot", "dataset"):
        written.pop(key)
        default.pop(key)
    assert written == default


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("30s", 30), ("90m", 5400), ("2d", 172800), ("1h30m", 5400), ("500ms", 0.5), ("0", 0), ("1.5h", 5400)],
)
def test_durations(value: str, seconds: float) -> None:
    assert units.parse_duration(value) == seconds


@pytest.mark.parametrize("value", ["", "5", "m", "5 m", "5x", "-5s", "5s5", "1h 30m"])
def test_what_is_no_duration_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        units.parse_duration(value)


@pytest.mark.parametrize(
    ("value", "size"),
    [
        ("80GiB", 80 * 2**30),
        ("64MiB", 2**26),
        ("200MB", 200_000_000),
        ("4096", 4096),
        ("1.5 KiB", 1536),
        ("7B", 7),
    ],
)
def test_sizes(value: str, size: int) -> None:
    assert units.parse_size(value) == size
    assert units.parse_size(units.write_size(size)) == size


def test_numbers_for_people() -> None:
    assert units.format_bytes(1536) == "1.5 KiB"
    assert units.format_bytes(3 * 2**40) == "3.0 TiB"
    assert units.format_count(99_999) == "99,999"
    assert units.format_count(1_234_567) == "1.2 M"
    assert units.format_duration(59.6) == "1 min"
    assert units.format_duration(185) == "3 min 5 s"
    assert units.format_duration(187_200) == "2 d 4 h"
    assert [units.write_duration(s) for s in (0, 0.5, 90, 5400, 172800)] == [
        "0s",
        "500ms",
        "90s",
        "90m",
        "2d",
    ]


MOUNTS = """\
22 1 0:20 / / rw - ext4 /dev/sda1 rw
30 22 0:30 / /mnt/nas rw - nfs4 host:/x rw
31 30 0:31 / /mnt/nas/local rw - xfs /dev/sdb1 rw
32 22 0:32 / /mnt/with\\040space rw - fuse.sshfs host: rw
33 22 0:33 / /over rw - cifs //h/s rw
34 33 0:34 / /over rw - ext4 /dev/sdc1 rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/lib", None),
        ("/mnt/nas", "nfs4"),
        ("/mnt/nas/state/x", "nfs4"),
        ("/mnt/nas/local/x", None),
        ("/mnt/nasty", None),
        ("/mnt/with space/x", "fuse.sshfs"),
        ("/over/x", None),
    ],
)
def test_the_innermost_and_last_mount_tells_whether_a_path_is_on_the_network(
    path: str, kind: str | None
) -> None:
    assert network_type(Path(path), MOUNTS) == kind


WITH_WARM = MINIMAL.replace("hot: hot", "hot: hot\nwarm: warm")


@pytest.mark.parametrize(
    ("text", "gib", "key", "told"),
    [
        (
            MINIMAL.replace("steps: 10", "steps: 10\n  start_when: {tokens: 1B}"),
            2,
            "train.start_when.tokens",
            "1000000000 tokens take 1.9 GiB, and hot holds 2.0 GiB less 1.0 GiB of stage.free_floor",
        ),
        (MINIMAL, 1, "stage.free_floor", "1.0 GiB are to stay free on a hot disk of 1.0 GiB"),
        (
            WITH_WARM + "evict: {target_free: 3GiB}\n",
            2,
            "evict.target_free",
            "3.0 GiB are to stay free on a hot disk of 2.0 GiB",
        ),
    ],
)
def test_what_the_hot_disk_can_never_hold_is_refused_with_the_numbers(
    tmp_path: Path, text: str, gib: int, key: str, told: str
) -> None:
    pipeline = load_text(tmp_path, text + "stage: {free_floor: 1GiB}\n")
    assert disk_faults(pipeline, 8 * 2**30) == []
    found = {".".join(map(str, fault.path)): fault.text for fault in disk_faults(pipeline, gib * 2**30)}
    assert told in found[key]


def test_segments_beyond_a_third_of_the_hot_disk_are_noted_with_a_number_that_fits(tmp_path: Path) -> None:
    pipeline = load_text(tmp_path, WITH_WARM + "stage: {free_floor: 1GiB}\nplan: {segment_tokens: 500M}\n")
    assert disk_notes(pipeline, 5 * 2**30) == []
    (note,) = disk_notes(pipeline, 2 * 2**30)
    assert note.path == ("plan", "segment_tokens")
    assert "500.0 M tokens take 953.7 MiB, more than a third of the 1.0 GiB" in note.text
    assert "At most 170M fit well" in note.text
    fitting = load_text(tmp_path, WITH_WARM + "stage: {free_floor: 1GiB}\nplan: {segment_tokens: 170M}\n")
    assert disk_notes(fitting, 2 * 2**30) == []


def test_eviction_without_a_warm_disk_is_refused_and_its_defaults_are_not(tmp_path: Path) -> None:
    (problem,) = problems_of(tmp_path, MINIMAL + "evict: {keep_hot_sets: 3}\n")
    assert "evict: shard sets leave hot for warm only" in problem
    load_text(tmp_path, MINIMAL + "evict: {keep_hot_sets: 1}\n")
    load_text(tmp_path, WITH_WARM + "evict: {keep_hot_sets: 3}\n")


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        (
            MINIMAL.replace("steps: 10", "steps: 10\n  checkpoint: {mirror: true}"),
            ["train.checkpoint.mirror"],
        ),
        (MINIMAL + "plan: {order: arrival}\n", []),
        (
            MINIMAL.replace("name: prose", "name: prose\n  limit: {rows: 5}") + "plan: {order: arrival}\n",
            ["plan.order"],
        ),
        (MINIMAL.replace("name: prose", "name: prose\n  limit: {files: 2, rows: 5, tokens: 1M}"), []),
    ],
)
def test_what_may_surprise_is_noted(tmp_path: Path, text: str, keys: list[str]) -> None:
    text = text.replace("steps: 10", "steps: 10\n  schedule: {warmup_steps: 1}")
    assert [".".join(map(str, note.path)) for note in notes(load_text(tmp_path, text))] == keys


def test_secrets_are_masked(tmp_path: Path) -> None:
    assert (
        masked("endpoint", "https://user:pass@hub.example/x?sig=abc")
        == "https://********@hub.example/x?********"
    )
    assert masked("hub_token", "hf_abc") == "********"
    assert masked("notify", ["https://hooks.example/secret-path"]) == ("********",)
    assert masked("text_column", "text") == "text"
    routes = "[{url: 'ntfy://x/T0P'}, {command: [curl, 'https://x/T0P']}]"
    file = write_pipeline(tmp_path, f"{MINIMAL}notify: {{routes: {routes}, heartbeat: 'https://x/T0P'}}\n")
    assert "T0P" not in effective_yaml(load_pipeline(file, {})) + repr(load_pipeline(file, {}))
    assert load_text(tmp_path, f"{MINIMAL}notify: []\n").notify == load_text(tmp_path, MINIMAL).notify


def test_loading_imports_nothing_heavy_and_is_quick(tmp_path: Path) -> None:
    program = (
        "import sys; from stoker.config.load import load_pipeline; load_pipeline(sys.argv[1], {});"
        "heavy = {'torch', 'numpy', 'pyarrow', 'tokenizers', 'click'} & set(sys.modules);"
        "words = open('/proc/self/status').read().split();"
        "print(sorted(heavy), int(words[words.index('VmHWM:') + 1]) // 1024)"
    )
    path = write_pipeline(tmp_path)
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=True)
    heavy, megabytes = done.stdout.rsplit(maxsplit=1)
    assert heavy == "[]"
    assert int(megabytes) < 36
