"""Trains a small GPT with Lightning, over tokens in a memmap.

    python train_lightning.py [--data data] [--out out] [--steps 1000] [...]

The lines that end with `# stoker` are what Stoker's client needs; without them the script is what it was.
"""

import argparse

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from stoker_client import Stoker  # stoker
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

stoker = Stoker()  # stoker

parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
for name, value in {
    "data": "data",
    "out": "out",
    "steps": 1000,
    "save_every": 100,
    "eval_every": 100,
}.items():
    parser.add_argument(f"--{name}", type=type(value), default=value)
for name, value in {"block": 256, "batch": 16, "layers": 6, "heads": 6, "width": 384, "vocab": 50304}.items():
    parser.add_argument(f"--{name}", type=int, default=value)
args = parser.parse_args()


class Windows(Dataset):
    def __init__(self, file):
        self.tokens = np.memmap(file, dtype=np.uint16, mode="r")

    def __len__(self):
        return (len(self.tokens) - 1) // args.block

    def __getitem__(self, index):
        begin = index * args.block
        return torch.from_numpy(self.tokens[begin : begin + args.block + 1].astype(np.int64))


class GPT(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(args.vocab, args.width), nn.Embedding(args.block, args.width)
        layer = nn.TransformerEncoderLayer(
            args.width, args.heads, 4 * args.width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, args.layers, enable_nested_tensor=False)

    def loss(self, windows):
        x, y = windows[:, :-1], windows[:, 1:]
        mask = nn.Transformer.generate_square_subsequent_mask(args.block, device=windows.device)
        hidden = self.blocks(self.tokens(x) + self.places.weight, mask=mask, is_causal=True)
        logits = functional.linear(hidden, self.tokens.weight)
        return functional.cross_entropy(logits.flatten(0, 1), y.flatten())

    def training_step(self, windows, index):
        loss = self.loss(windows)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, windows, index):
        self.log("val_loss", self.loss(windows), prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-4)


class Tell(pl.Callback):  # stoker
    def on_train_batch_end(self, trainer, module, outputs, batch, index):  # stoker
        stoker.phase("train", step=trainer.global_step, loss=outputs["loss"])  # stoker
        if stoker.stop and not trainer.should_stop:  # stoker
            path = f"{args.out}/step={trainer.global_step}.ckpt"  # stoker
            trainer.save_checkpoint(path)  # stoker
            stoker.tell(checkpoint=path)  # stoker
            trainer.should_stop = True  # stoker

    def on_validation_batch_end(self, *_):  # stoker
        stoker.phase("eval", done=True)  # stoker


resume = None
callbacks = [ModelCheckpoint(args.out, "{step}", every_n_train_steps=args.save_every, save_top_k=-1)]
callbacks.append(Tell())  # stoker
resume = stoker.resume  # stoker
trainer = pl.Trainer(
    max_steps=args.steps,
    val_check_interval=args.eval_every,
    check_val_every_n_epoch=None,
    callbacks=callbacks,
    logger=False,
    log_every_n_steps=1,
)
windows = [Windows(f"{args.data}/{split}.bin") for split in ("train", "val")]
trainer.fit(
    GPT(),
    DataLoader(windows[0], batch_size=args.batch, shuffle=True),
    DataLoader(windows[1], batch_size=args.batch),
    ckpt_path=resume,
)
