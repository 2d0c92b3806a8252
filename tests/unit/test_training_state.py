"""State to bytes and back bit for bit; what a launch refuses, and what it begins with."""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from stoker.checkpoints.handover import Memory, Sealer, lay_out
from stoker.checkpoints.seal import CheckpointWriter
from stoker.plan.positions import Position
from stoker.release.sampling import Sampling, TextModel
from stoker.store.errors import ConfigError, DataError, StorageError, UsageError
from stoker.store.record import write_record
from stoker.training import state
from stoker.training.copying import TensorCopier
from stoker.training.launch import Launch, read_launch
from stoker.training.load import load
from stoker.training.loop import Training
from stoker.training.model.shape import Shape
from stoker.training.model.transformer import Model
from stoker.training.numerics import resolve
from stoker.training.protocol import Protocol, Stop
from stoker.training.saving import contents, log_up_to
from stoker.training.state import Progress
from stoker.training.steps import device
from stoker.training.steps.optimizer import AdamW
from support.models import make_model
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
    shape = Shape.parse(launch.model, vocab_size=VOCAB, seq_len=SEQ_LEN)
    model = make_model(shape, seed=seed)
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
