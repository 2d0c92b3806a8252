"""Two ranks under torchrun; each writes its shard into `out/step-N`, the second one after the pause."""

from __future__ import annotations

import json
import os
import time

import ledger
import torch
import torch.distributed as dist
from stoker_client import Stoker

stoker = Stoker() if ledger.HAS_CLIENT else None
torch.set_num_threads(1)
dist.init_process_group("gloo")
RANK = dist.get_rank()


def read(path: str) -> dict[str, list[int]]:
    bodies = {f"rank-{rank}": json.load(open(f"{path}/rank-{rank}.json")) for rank in range(2)}
    return {part: [body["step"], body["nonce"]] for part, body in bodies.items()}


def save(step: int) -> None:
    path, shared = f"out/step-{step}", [0]
    os.makedirs(path, exist_ok=True)
    if RANK == 0:
        one = ledger.Save(path, step)
        shared = [one.nonce]
    dist.broadcast_object_list(shared)
    shard = json.dumps({"step": step, "nonce": shared[0], "weights": [step] * 20_000}).encode()
    if RANK == 0:
        ledger.write_slowly(f"{path}/rank-0.json", shard)
        one.pause()
    dist.barrier()
    if RANK == 1:
        ledger.write_slowly(f"{path}/rank-1.json", shard)
    dist.barrier()
    if RANK == 0:
        one.finished()
        if stoker:
            stoker.tell(checkpoint=path)


own = stoker.resume if stoker else ledger.newest("out", "step-")
begun = [ledger.started(own, read) if RANK == 0 else 0]
dist.broadcast_object_list(begun)
step = begun[0]
while True:
    time.sleep(ledger.STEP_S)
    step += 1
    if RANK == 0:
        ledger.stepped(step)
    if stoker:
        stoker.phase("train", step=step)
    stop = torch.tensor(int(stoker.stop if stoker else False))
    dist.all_reduce(stop, op=dist.ReduceOp.MAX)
    if step % ledger.EVERY == 0 or stop:
        save(step)
    if stop:
        break
