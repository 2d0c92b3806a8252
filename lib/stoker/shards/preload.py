"""What a fork server loads for the workers of shards: their modules, then a tokenizer and its engine.

Task: {"module"} for the modules alone; with "tokenizer_file" and "engine" these too. Result: `status`
prepared, or unsupported with the `reason` where the engine does not take the tokenizer: each worker then
finds out itself.
"""

from __future__ import annotations

from stoker.shards.one_thread import one_thread

# isort: split
from pathlib import Path
from typing import Any

import tokenizers

from stoker.corpus import stage_worker
from stoker.shards import build_worker, engine_worker, tokenizer_worker
from stoker.shards.engine import EngineUnsupported, make_engine
from stoker.shards.tokenizer import reload_tokenizer

LOADED = (tokenizers, stage_worker, tokenizer_worker, engine_worker, build_worker)


def preload(task: dict[str, Any]) -> dict[str, Any]:
    """Load what the task names; raises TokenizerUnsupported, OSError."""
    one_thread()
    if "tokenizer_file" in task:
        try:
            make_engine(task["engine"], reload_tokenizer(Path(task["tokenizer_file"]), keep=True), keep=True)
        except EngineUnsupported as error:
            return {"status": "unsupported", "reason": str(error)}
    return {"status": "prepared"}
