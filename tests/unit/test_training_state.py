"""State to bytes and back bit for bit, the held-out loss, and text out of a sealed checkpoint."""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from stoker.checkpoints.handover import Memory, Sealer, lay_out
from stoker.checkpoints.seal import CheckpointWriter
from stoker.cli.runs.generate import generate
from stoker.cli.which_run import checkpoints_at
from stoker.plan.positions import Position
from stoker.store.errors import ConfigError, DataError, NonFinite, StorageError, UsageError
from stoker.store.record import write_record
from stoker.training import state
from stoker.training.evaluate import evaluate, open_heldout
from stoker.training.launch import Launch, read_launch
from stoker.training.load import load
from stoker.training.loop import Training
from stoker.training.model.shape import Shape
from stoker.training.model.transformer import Model, initialize
from stoker.training.numerics import resolve
from stoker.training.protocol import Protocol, Stop
from stoker.training.sampling import Sampling, TextModel, pick
from stoker.training.saving import TensorCopier, contents, log_up_to
from stoker.training.state import Progress
from stoker.training.steps import device
from stoker.training.steps.optimizer import AdamW
from support.trainer_run import SEQ_LEN, VOCAB, Inbox, TrainerRun

CPU = device.Compute(torch.device("cpu"), bf16=False)


@pytest.fixture
def run(tmp_path: Path) -> TrainerRun:
    run = TrainerRun(tmp_path)
    run.plan(40, 40)
    write_record(run.layout.launch, run.record("launch-1"))
    return run


def launch_of(run: TrainerRun) -> Launch:
    return read_launch({"STOKER_RUN_DIR": str(run.layout.root)})


def trained(launch: Launch, seed: int = 1) -> tuple[Model, AdamW]:
    model = Model(Shape.parse(launch.model, vocab_size=VOCAB, seq_len=SEQ_LEN))
    initialize(model, seed)
    optimizer = AdamW(model.named_parameters(), betas=(0.9, 0.95), weight_decay=0.1)
    for step in range(3):
        windows = torch.randint(0, VOCAB, (4, SEQ_LEN + 1), generator=torch.Generator().manual_seed(step))
        model.loss_sum(windows).backward()
        optimizer.step(0.01)
    return model, optimizer


def sealed(run: TrainerRun, model: Model, optimizer: AdamW) -> tuple[Path, Progress]:
    progress = Progress(3, 3 * 8 * SEQ_LEN, Position(0, 24), 2.5, 2.75)
    head = hashlib.sha256(run.layout.plan.read_bytes().splitlines()[-1]).hexdigest()
    launch = launch_of(run)
    numerics = replace(resolve(launch, CPU.device), micro_batch=4)
    files, body = contents(launch, progress, model, optimizer, numerics=numerics, plan_head=head)
    with CheckpointWriter(run.layout.checkpoints, 3, "launch-1") as writer:
        for name, parts in files:
            writer.add(name, map(TensorCopier(CPU.device).bytes_of, parts))
        return writer.seal(body), progress


def test_a_saved_state_is_restored_bit_for_bit(run: TrainerRun) -> None:
    launch = launch_of(run)
    model, optimizer = trained(launch)
    torch.rand(5)
    path, progress = sealed(run, model, optimizer)
    expected_random = torch.rand(4)

    other, its_optimizer = trained(launch, seed=2)
    its_optimizer.steps = 99
    saved_state = state.read_checkpoint(path, launch)
    assert saved_state.progress == progress
    state.restore(saved_state, other, its_optimizer)
    assert its_optimizer.steps == 3
    saved = state.model_tensors(model) | optimizer.tensors()
    restored = state.model_tensors(other) | its_optimizer.tensors()
    assert saved.keys() == restored.keys() and len(saved) == 3 * len(state.model_tensors(model))
    assert all(torch.equal(saved[name], restored[name]) for name in saved)
    assert torch.equal(torch.rand(4), expected_random)


def test_what_cuda_refuses_to_pin_is_no_error_of_the_thread_that_trains(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called: list[int] = []
    runtime = dict.fromkeys(
        ("cudaHostRegister", "cudaHostUnregister"), lambda *_: called.append(threading.get_ident())
    )
    monkeypatch.setattr("torch.cuda.cudart", lambda: SimpleNamespace(**runtime))
    monkeypatch.setattr("torch.cuda.Stream", lambda device: device)
    copier = TensorCopier(torch.device("cuda"))
    for _ in range(2):
        copier.prepare(memoryview(bytearray(8)))
    assert len(called) == 3 and threading.get_ident() not in called


@pytest.mark.gpu
def test_a_copy_from_cuda_is_of_the_values_before_the_next_update() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    card = torch.device("cuda")
    copier, memory = TensorCopier(card), Memory()
    values = torch.full((1 << 26,), 1.0, device=card)
    layout = lay_out([("model", [values, b"end"])], {"step": 1})
    memory.reserve(layout.size)
    copier.prepare(memory.view)
    for value in (1.0, 2.0):
        values.fill_(value)
        copier.copy(layout, memory.view)
        copier.before_update()
        values.fill_(9.0)
        assert copier.is_done(wait=True)
        copied = torch.frombuffer(memory.view[: values.nbytes], dtype=torch.float32)
        assert bool((copied == value).all())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"config_digest": "e" * 64}, ["d" * 64, "e" * 64]),
        ({"run_id": "run-2"}, ["run-1", "run-2"]),
        ({"model": {"layers": 3}, "config_digest": "e" * 64}, ["layers is 2", "3"]),
        ({"model": {"qk_norm": True}, "config_digest": "e" * 64}, ["model.qk_norm is False", "True"]),
        ({"optimizer": {"name": "muon"}, "config_digest": "e" * 64}, ["optimizer.name is adamw", "muon"]),
    ],
)
def test_a_checkpoint_of_another_run_is_refused_with_both_values(
    run: TrainerRun, changes: dict[str, Any], words: list[str]
) -> None:
    launch = launch_of(run)
    path, _ = sealed(run, *trained(launch))
    if "model" in changes:
        changes = {"model": {**launch.model, **changes["model"]}}
    with pytest.raises(ConfigError) as refusal:
        state.read_checkpoint(path, replace(launch, **changes))
    assert all(word in str(refusal.value) for word in words)


def test_a_run_begins_with_the_parameters_of_another_and_nothing_else_of_it(
    run: TrainerRun, tmp_path: Path
) -> None:
    model, optimizer = trained(launch_of(run))
    path, _ = sealed(run, model, optimizer)
    source = path.rename(tmp_path / path.name)
    digest = hashlib.sha256((source / "checkpoint.json").read_bytes()).hexdigest()
    origin = {"path": str(source), "step": 3, "sha256": digest}
    write_record(
        run.layout.launch, run.record("launch-2") | {"run_id": "run-2", "origin": origin, "steps": 1}
    )
    launch, sealer = launch_of(run), Sealer(run.layout.checkpoints, "launch-2")

    def begin(launch: Launch) -> Training:
        return load(launch, Protocol("", "launch-2"), Stop(), sealer)

    begun = begin(launch)
    expected = state.model_tensors(model)
    assert all(torch.equal(one, expected[name]) for name, one in state.model_tensors(begun.model).items())
    assert not any(one.any() for one in begun.optimizer.tensors().values())
    assert begun.progress == Progress() and begun.optimizer.steps == 0
    assert begun.run() == "steps"
    sealer.end()
    (own,) = run.checkpoints()

    weights = source / "model-00001.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(ConfigError, match=r"model-00001\.safetensors"):
        begin(launch)
    weights.write_bytes(whole)
    assert launch.origin is not None
    with pytest.raises(ConfigError, match="is another checkpoint now"):
        begin(replace(launch, origin=replace(launch.origin, sha256="f" * 64)))
    source.rename(tmp_path / "gone")
    with pytest.raises(StorageError, match="put it back"):
        begin(launch)
    assert begin(replace(launch, resume_from=own)).progress.step == 1


def test_a_checkpoint_of_another_tokenizer_is_refused(run: TrainerRun) -> None:
    path, _ = sealed(run, *trained(launch_of(run)))
    run.tokenizer.write_bytes(run.tokenizer.read_bytes() + b" ")
    with pytest.raises(ConfigError, match="tokenizer"):
        state.read_checkpoint(path, launch_of(run))


def test_a_log_is_copied_up_to_its_head_and_a_missing_head_is_refused(run: TrainerRun) -> None:
    lines = run.layout.plan.read_bytes().splitlines(keepends=True)
    first = hashlib.sha256(lines[0].rstrip(b"\n")).hexdigest()
    assert log_up_to(run.layout.plan, first) == lines[0]
    assert log_up_to(run.layout.plan, "0" * 64) == b""
    with pytest.raises(DataError, match="no longer has"):
        log_up_to(run.layout.plan, "f" * 64)


def test_the_held_out_loss_is_the_mean_over_windows_with_its_standard_error(run: TrainerRun) -> None:
    launch = launch_of(run)
    model, _ = trained(launch)
    held = launch.heldout
    assert held is not None
    windows = open_heldout(held, "uint16")
    found = evaluate(model, windows, compute=CPU, micro_batch=4)
    with torch.no_grad():
        each = [
            model.loss_sum(torch.from_numpy(row[None].astype(np.int64))).item() / SEQ_LEN for row in windows
        ]
    assert found is not None
    assert found.loss == pytest.approx(np.mean(each), abs=1e-5)
    assert found.stderr == pytest.approx(np.std(each, ddof=1) / np.sqrt(6), rel=1e-3)
    assert evaluate(model, windows, compute=CPU, micro_batch=4, go_on=lambda windows: False) is None


def test_a_held_out_loss_that_is_not_finite_is_a_row_without_it_and_a_reason(run: TrainerRun) -> None:
    wild = {"name": "adamw", "lr": 1e30, "betas": [0.9, 0.95], "weight_decay": 0.0, "clip": None}
    changes = {"optimizer": wild, "evaluate": {"every_steps": 1, "tokens": 96}, "deterministic": False}
    with (
        run.training(**changes) as training,
        pytest.raises(NonFinite, match="the held-out loss at step 1 is"),
    ):
        training.run()
    assert run.checkpoints() == []
    assert run.rows()[-1] == {"step": 1, "timeline": 0, "val_loss": None, "val_stderr": None}


def test_numerics_that_change_are_told_and_saved_and_a_replay_has_no_others(
    run: TrainerRun, tmp_path: Path
) -> None:
    inbox = Inbox(tmp_path / "socket")
    with run.training(socket_path=inbox.path, steps=1) as training:
        training.change_numerics(micro_batch=4)
        assert json.loads(inbox.read()[-1]["NUMERICS"]) == training.numerics.body()
        training.run()
    (checkpoint,) = run.checkpoints()
    assert (
        state.read_json(checkpoint / "checkpoint.json")["micro_batch"] == training.numerics.micro_batch == 4
    )
    training.launch = replace(training.launch, is_replay=True)
    with pytest.raises(ConfigError, match="replay it elsewhere"):
        training.change_numerics(micro_batch=2)
    inbox.close()


def test_held_out_windows_that_changed_are_refused(run: TrainerRun) -> None:
    held = launch_of(run).heldout
    assert held is not None
    raw = bytearray(held.file.read_bytes())
    raw[7] ^= 1
    held.file.write_bytes(raw)
    with pytest.raises(DataError, match="held-out data changed"):
        open_heldout(held, "uint16")


def test_the_unigram_loss_is_that_of_the_training_frequencies(
    run: TrainerRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "scripts"))
    from demolib.baseline import unigram_loss

    tokens = np.concatenate([np.fromfile(file, "<u2") for file in run.shards.glob("*/train-*.bin")])
    counts = np.bincount(tokens, minlength=VOCAB) + 1
    held = np.fromfile(run.layout.heldout, "<u2").reshape(6, SEQ_LEN + 1)[:, 1:]
    expected = -np.log(counts[held] / counts.sum()).mean()
    assert unigram_loss(run.layout.root) == pytest.approx(expected)


def test_a_text_is_continued_from_the_checkpoint_alone_and_alike_for_a_seed(
    run: TrainerRun, tmp_path: Path
) -> None:
    path, _ = sealed(run, *trained(launch_of(run)))
    alone = tmp_path / "elsewhere" / path.name
    alone.parent.mkdir()
    path.rename(alone)
    run.tokenizer.unlink()
    model = TextModel(alone)
    one = model.continue_text("the café <|endoftext|>", 20, Sampling(seed=1))
    assert one.startswith("the café <|endoftext|>")
    assert one == model.continue_text("the café <|endoftext|>", 20, Sampling(seed=1))
    assert one != model.continue_text("the café <|endoftext|>", 20, Sampling(seed=2))

    done = CliRunner().invoke(generate, [str(alone.parent), "--prompt", "tea", "--tokens", "3"])
    assert done.exit_code == 0 and done.output.startswith("tea")


def test_a_model_with_every_option_is_trained_with_its_mask_and_generates(run: TrainerRun) -> None:
    model = {**run.record("launch-1")["model"], "qk_norm": True, "document_mask": True}
    with run.training(steps=2, model=model, eot=5, recompute="blocks") as training:
        masked = training.model.mask
        assert masked is not None
        allowed = masked(torch.tensor([[1, 5, 2]])).allowed
        assert allowed is not None and allowed[0, 0].int().tolist() == [[1, 0, 0], [0, 1, 0], [0, 1, 1]]
        assert training.model.recompute
        assert training.run() == "steps"
    (path,) = run.checkpoints()
    assert state.read_checkpoint(path, launch_of(run)).progress.step == 2
    assert TextModel(path).continue_text("the café", 4, Sampling(seed=1)).startswith("the café")


def test_a_checkpoint_with_a_flipped_bit_gives_no_text(run: TrainerRun) -> None:
    path, _ = sealed(run, *trained(launch_of(run)))
    weights = path / "model-00001.safetensors"
    raw = bytearray(weights.read_bytes())
    raw[-1] ^= 1
    weights.write_bytes(raw)
    failed = CliRunner().invoke(generate, [str(path), "--prompt", "tea"])
    assert isinstance(failed.exception, DataError) and failed.exception.exit_code == 65
    assert "model-00001.safetensors" in str(failed.exception)


def test_a_run_directory_stands_for_its_sealed_checkpoints(tmp_path: Path) -> None:
    for name in ("step-000000900", "step-000001000", ".tmp-step-x-000001100"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    older, newest = (tmp_path / "checkpoints" / name for name in ("step-000000900", "step-000001000"))
    assert checkpoints_at(tmp_path) == checkpoints_at(tmp_path / "checkpoints") == [older, newest]
    assert checkpoints_at(newest) == [newest]
    with pytest.raises(UsageError):
        checkpoints_at(tmp_path / "nowhere")


def test_temperature_0_takes_the_likeliest_and_top_k_draws_from_no_other() -> None:
    logits = torch.tensor([0.0, 3.0, 2.9, -1.0])
    generator = torch.Generator().manual_seed(1)
    assert pick(logits, Sampling(temperature=0), generator) == 1
    assert pick(logits, Sampling(temperature=1e-50), generator) == 1
    drawn = {pick(logits, Sampling(temperature=5.0, top_k=2), generator) for _ in range(50)}
    assert drawn == {1, 2}
    assert len({pick(logits, Sampling(temperature=50.0, top_k=0), generator) for _ in range(200)}) == 4


def test_top_p_draws_from_the_fewest_that_have_the_share() -> None:
    logits = torch.log(torch.tensor([0.1, 0.5, 0.15, 0.25]))
    generator = torch.Generator().manual_seed(1)

    def drawn(**how: Any) -> set[int]:
        return {pick(logits, Sampling(1.0, seed=0, **how), generator) for _ in range(100)}

    assert drawn(top_k=0, top_p=0.74) == {1, 3}
    assert drawn(top_k=0, top_p=0.76) == {1, 2, 3}
    assert drawn(top_k=2, top_p=0.6) == {1}  # of two, the likelier has two thirds
    assert drawn(top_k=0, top_p=1e-9) == {1}


def test_a_text_longer_than_the_windows_goes_on_from_the_last_half(run: TrainerRun) -> None:
    path, _ = sealed(run, *trained(launch_of(run)))
    text = TextModel(path)
    model, context, begins = text._model, [text._eot, 7, 8], 0
    drawn = list(text._draw(context[1:], 4 * SEQ_LEN, Sampling(temperature=0)))
    for token in drawn:
        if len(context) - begins > SEQ_LEN:
            begins = len(context) - SEQ_LEN // 2
        with torch.inference_mode():
            logits = model(torch.tensor([context[begins:]]))[0, -1, : text._ids]
        assert token == int(logits.argmax())
        context.append(token)
    assert len(drawn) == 4 * SEQ_LEN


@pytest.mark.parametrize("share", ["0", "1.5"])
def test_a_share_that_is_none_is_refused(share: str, tmp_path: Path) -> None:
    refused = CliRunner().invoke(generate, [str(tmp_path), "--top-p", share])
    assert refused.exit_code == 2 and "--top-p" in refused.output  # `stoker` makes it 64


def test_a_missing_or_foreign_launch_record_says_so(run: TrainerRun) -> None:
    with pytest.raises(UsageError, match="STOKER_RUN_DIR"):
        read_launch({})
    with pytest.raises(ConfigError, match="launch-1, not of other"):
        read_launch({"STOKER_RUN_DIR": str(run.layout.root), "STOKER_LAUNCH": "other"})
    record = run.record("launch-1")
    del record["steps"]
    write_record(run.layout.launch, record)
    with pytest.raises(ConfigError, match="steps"):
        launch_of(run)
    run.layout.launch.unlink()
    with pytest.raises(ConfigError, match="not there"):
        launch_of(run)


def test_a_checkpoint_says_what_decides_the_bits(run: TrainerRun) -> None:
    path, _ = sealed(run, *trained(launch_of(run)))
    trainer = json.loads((path / "trainer.json").read_bytes())
    assert trainer["versions"].keys() == {"python", "torch", "numpy", "stoker"}
    body = json.loads((path / "checkpoint.json").read_bytes())
    assert trainer["numerics"]["micro_batch"] == body["micro_batch"] == 4
    assert trainer["numerics"] == replace(resolve(launch_of(run), CPU.device), micro_batch=4).body()
    model = json.loads((path / "model.json").read_bytes())
    assert (model["vocab_size"], model["seq_len"], model["kv_heads"]) == (VOCAB, SEQ_LEN, 2)
