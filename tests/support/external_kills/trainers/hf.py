"""The Trainer of Hugging Face transformers (4 or 5) on a tiny GPT-2: `out/checkpoint-N`."""

from __future__ import annotations

import json
import os
import time

import ledger
import torch
from safetensors import safe_open
from stoker_client import Stoker

stoker = Stoker() if ledger.HAS_CLIENT else None

import transformers  # noqa: E402 - the client comes first
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments  # noqa: E402

torch.set_num_threads(1)
STAMP = "stamp"  # a buffer of the model and a word in every other part: step and nonce of the save


def read(path: str) -> dict[str, list[int]]:
    with safe_open(f"{path}/model.safetensors", "pt") as model:
        parts = {"model": model.get_tensor(STAMP).tolist()}
    optimizer = torch.load(f"{path}/optimizer.pt", weights_only=True)
    parts["optimizer"] = optimizer["param_groups"][0][STAMP]
    parts["scheduler"] = torch.load(f"{path}/scheduler.pt", weights_only=True)[STAMP]
    state = json.load(open(f"{path}/trainer_state.json"))
    parts["state"] = [state["global_step"], int(state["trial_name"])]
    return parts


class Slow(Trainer):
    def training_step(self, *words, **named):
        time.sleep(ledger.STEP_S)
        return super().training_step(*words, **named)

    def _save_checkpoint(self, *words, **named):
        step = self.state.global_step
        self.one = ledger.Save(f"{self.args.output_dir}/checkpoint-{step}", step)
        stamp = [step, self.one.nonce]
        self.model.stamp[:] = torch.tensor(stamp)
        self.optimizer.param_groups[0][STAMP] = stamp
        vars(getattr(self.lr_scheduler, "scheduler", self.lr_scheduler))[STAMP] = stamp
        self.state.trial_name = str(self.one.nonce)
        super()._save_checkpoint(*words, **named)
        self.one.finished()
        ledger.note("kept", names=os.listdir(self.args.output_dir))  # it has removed older ones

    def save_model(self, output_dir=None, **named):
        super().save_model(output_dir, **named)
        ledger.rewrite_slowly(f"{output_dir}/model.safetensors")

    def _save_optimizer_and_scheduler(self, output_dir):
        self.one.pause()
        super()._save_optimizer_and_scheduler(output_dir)
        ledger.rewrite_slowly(f"{output_dir}/optimizer.pt")


class Tell(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        ledger.stepped(state.global_step)
        if stoker:
            stoker.phase("train", step=state.global_step)
            if stoker.stop:
                control.should_save = control.should_training_stop = True

    def on_save(self, args, state, control, **_):
        if stoker:
            stoker.tell(checkpoint=f"{args.output_dir}/checkpoint-{state.global_step}")


class Windows(torch.utils.data.Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, index):
        window = (torch.arange(8) + index) % 16
        return {"input_ids": window, "labels": window}


print("transformers", transformers.__version__, flush=True)
model = GPT2LMHeadModel(GPT2Config(vocab_size=16, n_positions=8, n_embd=8, n_layer=1, n_head=1))
model.register_buffer(STAMP, torch.zeros(2, dtype=torch.int64))
args = TrainingArguments(
    "out",
    max_steps=1_000_000,
    per_device_train_batch_size=1,
    save_steps=ledger.EVERY,
    save_total_limit=ledger.SETTINGS["save_total_limit"],
    logging_steps=1000,
    use_cpu=True,
    report_to="none",
    disable_tqdm=True,
)
trainer = Slow(model=model, args=args, train_dataset=Windows(), callbacks=[Tell()])
own = stoker.resume if stoker else ledger.newest("out", "checkpoint-")
ledger.started(own, read)
trainer.train(resume_from_checkpoint=own)
