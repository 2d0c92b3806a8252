"""Lightning with a CheckpointIO that writes a directory, the weights first: `out/step=N.ckpt`."""

from __future__ import annotations

import os
import time

import ledger
import torch
from stoker_client import Stoker

stoker = Stoker() if ledger.HAS_CLIENT else None

import lightning.pytorch as pl  # noqa: E402 - the client comes first
from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: E402
from lightning.pytorch.plugins.io import CheckpointIO  # noqa: E402

torch.set_num_threads(1)
PARTS = ("model", "rest")


def read(path: str) -> dict[str, list[int]]:
    bodies = {part: torch.load(f"{path}/{part}.pt", weights_only=False) for part in PARTS}
    return {part: body["stamp"] for part, body in bodies.items()}


class Slow(CheckpointIO):
    def save_checkpoint(self, checkpoint, path, storage_options=None):
        path, step = str(path), checkpoint["global_step"]
        os.makedirs(path, exist_ok=True)
        one = ledger.Save(path, step)
        bodies = {"model": {"state_dict": checkpoint["state_dict"]}}
        bodies["rest"] = {key: value for key, value in checkpoint.items() if key != "state_dict"}
        for number, part in enumerate(PARTS):
            if number:
                one.pause()
            file = f"{path}/{part}.pt"
            torch.save({**bodies[part], "stamp": [step, one.nonce]}, file)
            ledger.rewrite_slowly(file)
        one.finished()
        if stoker and (ledger.TELLS_ALL or stoker.stop):
            stoker.tell(checkpoint=path)

    def load_checkpoint(self, path, map_location=None, weights_only=None):
        bodies = [torch.load(f"{path}/{part}.pt", weights_only=False) for part in PARTS]
        whole = {key: value for body in bodies for key, value in body.items()}
        del whole["stamp"]
        return whole

    def remove_checkpoint(self, path):
        raise NotImplementedError


class Line(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(8, 1)

    def training_step(self, batch, index):
        time.sleep(ledger.STEP_S)
        return self.line(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


class Tell(pl.Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        ledger.stepped(trainer.global_step)
        if stoker:
            stoker.phase("train", step=trainer.global_step)
            if stoker.stop and not trainer.should_stop:
                trainer.save_checkpoint(f"out/step={trainer.global_step}.ckpt")
                trainer.should_stop = True


own = stoker.resume if stoker else ledger.newest("out", "step=")
ledger.started(own, read)
trainer = pl.Trainer(
    max_steps=1_000_000,
    max_epochs=-1,
    accelerator="cpu",
    callbacks=[Tell(), ModelCheckpoint("out", "{step}", every_n_train_steps=ledger.EVERY, save_top_k=-1)],
    plugins=[Slow()],
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
data = torch.utils.data.TensorDataset(torch.ones(100_000, 8))
trainer.fit(Line(), torch.utils.data.DataLoader(data, batch_size=1), ckpt_path=own, weights_only=False)
