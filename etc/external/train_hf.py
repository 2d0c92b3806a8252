"""Trains a small GPT-2 with the Trainer of Hugging Face transformers, over tokens in a memmap.

    python train_hf.py --data data --output_dir out [--max_steps 1000 and any other TrainingArguments]

The lines that end with `# stoker` are what Stoker's client needs (level 1). Without them, with
`--enable_jit_checkpoint true`, the same script is a trainer of level 0: the Trainer itself saves on SIGTERM.
"""

from dataclasses import dataclass

import numpy as np
import torch
from stoker_client import Stoker  # stoker
from torch.utils.data import Dataset
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    HfArgumentParser,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

stoker = Stoker()  # stoker


@dataclass
class Shape:
    data: str = "data"
    block: int = 1024
    layers: int = 12
    heads: int = 12
    width: int = 768
    vocab: int = 50304


class Windows(Dataset):
    def __init__(self, file, block):
        self.tokens, self.block = np.memmap(file, dtype=np.uint16, mode="r"), block

    def __len__(self):
        return len(self.tokens) // self.block

    def __getitem__(self, index):
        window = self.tokens[index * self.block : (index + 1) * self.block].astype(np.int64)
        return {"input_ids": torch.from_numpy(window), "labels": torch.from_numpy(window)}


class Tell(TrainerCallback):  # stoker
    def on_step_end(self, args, state, control, **_):  # stoker
        stoker.phase("train", step=state.global_step)  # stoker
        if stoker.stop:  # stoker
            control.should_save = control.should_training_stop = True  # stoker

    def on_log(self, args, state, control, logs, **_):  # stoker
        stoker.tell(loss=logs.get("loss"), val_loss=logs.get("eval_loss"))  # stoker

    def on_prediction_step(self, args, state, control, **_):  # stoker
        stoker.phase("eval", done=True)  # stoker

    def on_save(self, args, state, control, **_):  # stoker
        stoker.tell(checkpoint=f"{args.output_dir}/checkpoint-{state.global_step}")  # stoker


args, shape = HfArgumentParser((TrainingArguments, Shape)).parse_args_into_dataclasses()
sizes = {"n_positions": shape.block, "n_embd": shape.width, "n_layer": shape.layers, "n_head": shape.heads}
trainer = Trainer(
    model=GPT2LMHeadModel(GPT2Config(vocab_size=shape.vocab, **sizes)),
    args=args,
    train_dataset=Windows(f"{shape.data}/train.bin", shape.block),
    eval_dataset=Windows(f"{shape.data}/val.bin", shape.block),
)
trainer.add_callback(Tell())  # stoker
args.resume_from_checkpoint = stoker.resume or args.resume_from_checkpoint  # stoker
trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
