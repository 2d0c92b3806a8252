"""Saves in place, as simple scripts do: `out/last` with two files, or `out/last.json` in two halves."""

from __future__ import annotations

import json
import os
import sys
import time

import ledger
from stoker_client import Stoker

stoker = Stoker() if ledger.HAS_CLIENT else None
IS_FOLDER = sys.argv[1] == "folder"
LAST = "out/last" if IS_FOLDER else "out/last.json"
PARTS = ("model", "optimizer")


def read(path: str) -> dict[str, list[int]]:
    if IS_FOLDER:
        bodies = {part: json.load(open(f"{path}/{part}.json")) for part in PARTS}
    else:
        bodies = json.load(open(path))
    return {part: [bodies[part]["step"], bodies[part]["nonce"]] for part in PARTS}


def save(step: int) -> None:
    if stoker and IS_FOLDER:  # the other one says no phase, as the shortest use of the client
        stoker.phase("checkpoint", step=step)
    os.makedirs(LAST if IS_FOLDER else "out", exist_ok=True)
    one = ledger.Save(LAST, step)
    body = json.dumps({"step": step, "nonce": one.nonce, "weights": [step] * 20_000}).encode()
    if IS_FOLDER:
        ledger.write_slowly(f"{LAST}/model.json", body)
        one.pause()
        ledger.write_slowly(f"{LAST}/optimizer.json", body)
    else:
        ledger.write_slowly(LAST, b'{"model": ' + body)
        one.pause()
        ledger.write_slowly(LAST, b', "optimizer": ' + body + b"}", "ab")
    one.finished()
    if stoker:
        stoker.tell(checkpoint=LAST)


own = LAST if os.path.exists(LAST) else None
step = ledger.started(stoker.resume if stoker else own, read)
while True:
    time.sleep(ledger.STEP_S)
    step += 1
    ledger.stepped(step)
    if stoker:
        stoker.phase("train", step=step, loss=9 / step)
    if step % ledger.EVERY == 0 or (stoker and stoker.stop):
        save(step)
    if stoker and stoker.stop:
        break
