"""Trains a small GPT as nanoGPT does: batches from a memmap, one ckpt.pt, saved when the held-out loss falls.

    python train_nanogpt.py [--data_dir=data] [--max_iters=600000] [...]

The lines that end with `# stoker` are what Stoker's client needs; without them the script is what it was.
"""

import math
import os
import sys
import time

import numpy as np
import torch
from stoker_client import Stoker  # stoker
from torch import nn
from torch.nn import functional

stoker = Stoker()  # stoker

data_dir, out_dir, init_from = "data", "out", "scratch"  # init_from: scratch or resume
eval_interval, eval_iters, log_interval = 2000, 200, 1
gradient_accumulation_steps, batch_size, block_size = 40, 12, 1024
n_layer, n_head, n_embd, vocab_size = 12, 12, 768, 50304
learning_rate, max_iters, warmup_iters, grad_clip = 6e-4, 600000, 2000, 1.0
device = "cuda" if torch.cuda.is_available() else "cpu"
for argument in sys.argv[1:]:
    name, value = argument.removeprefix("--").split("=", 1)
    globals()[name] = type(globals()[name])(value)
if stoker.resume:  # stoker
    init_from = "resume"  # stoker
if stoker.micro_batch:  # stoker
    gradient_accumulation_steps *= batch_size // stoker.micro_batch  # stoker
    batch_size = stoker.micro_batch  # stoker


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.qkv, self.out = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)
        self.mlp = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd))

    def forward(self, x):
        heads = self.qkv(self.norm1(x)).unflatten(-1, (3, n_head, n_embd // n_head)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocab_size, n_embd), nn.Embedding(block_size, n_embd)
        self.blocks, self.norm = nn.Sequential(*(Block() for _ in range(n_layer))), nn.LayerNorm(n_embd)

    def forward(self, x, y):
        hidden = self.blocks(self.tokens(x) + self.places.weight[: x.shape[1]])
        logits = functional.linear(self.norm(hidden), self.tokens.weight)
        return functional.cross_entropy(logits.flatten(0, 1), y.flatten())


def get_batch(split):
    data = np.memmap(f"{data_dir}/{split}.bin", dtype=np.uint16, mode="r")
    begins = torch.randint(len(data) - block_size, (batch_size,))
    windows = np.stack([data[i : i + block_size + 1] for i in begins.tolist()]).astype(np.int64)
    batch = torch.from_numpy(windows).to(device)
    return batch[:, :-1], batch[:, 1:]


@torch.no_grad()
def estimate_loss():
    losses = torch.zeros(eval_iters)
    for k in range(eval_iters):
        losses[k] = model(*get_batch("val"))
        stoker.phase("eval", done=k + 1)  # stoker
    return losses.mean().item()


def save():
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save({**state, "iter_num": iter_num, "best_val_loss": best_val_loss}, f"{out_dir}/ckpt.pt.tmp")
    os.replace(f"{out_dir}/ckpt.pt.tmp", f"{out_dir}/ckpt.pt")
    stoker.tell(checkpoint=f"{out_dir}/ckpt.pt", val_loss=best_val_loss)  # stoker


def get_lr():
    if iter_num < warmup_iters:
        return learning_rate * (iter_num + 1) / (warmup_iters + 1)
    return learning_rate * (0.55 + 0.45 * math.cos(math.pi * min(1.0, iter_num / max_iters)))


os.makedirs(out_dir, exist_ok=True)
torch.manual_seed(1337)
model, iter_num, best_val_loss = GPT().to(device), 0, 1e9
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.1)
if init_from == "resume":
    checkpoint = torch.load(f"{out_dir}/ckpt.pt", map_location=device)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    iter_num, best_val_loss = checkpoint["iter_num"], checkpoint["best_val_loss"]

began = time.perf_counter()
while iter_num <= max_iters:
    for group in optimizer.param_groups:
        group["lr"] = get_lr()
    if iter_num % eval_interval == 0:
        val_loss = estimate_loss()
        print(f"step {iter_num}: val loss {val_loss:.4f}")
        if val_loss < best_val_loss and iter_num > 0:
            best_val_loss = val_loss
            save()
    for _ in range(gradient_accumulation_steps):
        loss = model(*get_batch("train")) / gradient_accumulation_steps
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if iter_num % log_interval == 0:
        lossf, now = loss.item() * gradient_accumulation_steps, time.perf_counter()
        print(f"iter {iter_num}: loss {lossf:.4f}, time {(now - began) * 1000:.2f}ms")
        began = now
    iter_num += 1
    stoker.phase("train", step=iter_num, loss=lossf, micro_batch=batch_size)  # stoker
    if stoker.stop:  # stoker
        save()  # stoker
        break  # stoker
