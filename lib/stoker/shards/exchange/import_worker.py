"""Worker: takes over tokens that others made, as a shard set.

task: {"place", "dataset", "build_id", "shard_tokens", "tokenizer_sha256", "vocab_size", "eot",
    "building", "shards", "floor", "stated_tokenizer": hex or null, "trust_tokenizer"}
messages: {"kind": "progress", ...} now and then; {"kind": "phase", "phase": surveyed, copy, seal, publish,
    published}; {"kind": "content", "sha256", "size", "tokens"} once all is read; it waits for
input, one line: {"path": under which it is on record now, or null where another source has its set}
Result: `status` published or existed with the books; on_record; target_invalid or refused with a reason.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from stoker.kit.workers.child import Report, WorkerStopped, run_worker
from stoker.shards.exchange.import_set import ImportTask, import_place
from stoker.shards.exchange.import_source import Found, ImportRefused
from stoker.shards.exchange.import_tokens import Survey


def main(task: dict[str, Any], report: Report) -> dict[str, Any]:
    """Import one place; the daemon puts it on record before anything is written."""

    def claim(content: Survey, found: Found) -> str | None:
        report("content", **asdict(content), form=found.form)
        answer = report.receive()
        if answer is None:
            raise WorkerStopped
        path: str | None = answer["path"]
        return path

    try:
        return import_place(ImportTask.from_mapping(task), report, claim)
    except ImportRefused as refusal:
        return {"status": "refused", "reason": str(refusal)}


if __name__ == "__main__":
    run_worker(main)
