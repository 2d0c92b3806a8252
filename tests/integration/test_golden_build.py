"""Build ids, keys, sets and the pin of a pipeline stay what they were, byte for byte.

Another value here means that each pipeline in the world builds its data again.
"""

from __future__ import annotations

import hashlib
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from stoker.corpus.records.dataset import DatasetPin
from stoker.shards.build import build_worker
from stoker.shards.format.identity import build_id
from stoker.shards.format.pinned import parameters_asked
from stoker.store.files import canonical_json
from support.builds import Recorder, build_task, set_bytes
from support.pipelines import make_pipeline

KEPT = Path(__file__).parents[1] / "data" / "state-0.1.0.tar.xz"  # its parquet and its tokenizer, as files
FILTERS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "all": {
        "min_chars": 300,
        "max_chars": 900,
        "languages": ["en", "de"],
        "at_least": {"language_score": 0.8, "token_count": 40},
    },
}
# By the filters: the build id, each set's key, and sha256 of all sets and of the pin.
GOLDEN: dict[str, dict[str, Any]] = {
    "defaults": {
        "build_id": "ad83e6431a5a3202a9d529f4c1b89bbc690433193fe618ce186fc94be2d5a4c4",
        "keys": ["9f91a71b53341b43", "a47303f347b06d5a", "c93ee94c82c76787"],
        "sets": "92f45f45b3da5c2ec097684824e8b6eb11ca9fbd115a9ec4e6054dfe0dbf376e",
        "pin": "d15471d16af449c8cc5c741e44004f3bd691db7c44c06ce4f4ebc24387af2a6a",
    },
    "all": {
        "build_id": "cabbb17a4dac0ac34a386062b717446961fc9b41b11192e7bf12e77e59881d1b",
        "keys": ["38da93546e3ff3f4", "834d52bb3423975c", "bd6a28b8fcd4d90d"],
        "sets": "c01b183f4fb1a1ef502013f07c48351b82875bccb21727dce0b3c3df1ec9111d",
        "pin": "13d9a36f9e32c0ecf01a8dfc49dba3aea9ec5f5434ec88319df4fe2c5ea98994",
    },
}


def golden(sets: dict[str, dict[str, bytes]], pin: DatasetPin) -> dict[str, Any]:
    digest = hashlib.sha256()
    for _, files in sorted(sets.items()):
        for name, content in sorted(files.items()):
            digest.update(name.encode() + content)
    return {
        "build_id": pin.build_id,
        "keys": sorted(sets),
        "sets": digest.hexdigest(),
        "pin": hashlib.sha256(canonical_json(pin.to_record())).hexdigest(),
    }


def test_ids_keys_sets_and_pin_are_those_that_they_were(tmp_path: Path) -> None:
    """Those of other filters are built here, by the worker's function."""
    with tarfile.open(KEPT) as archive:
        inside = [one for one in archive if "/source/" in one.name or "/tokenizers/" in one.name]
        archive.extractall(tmp_path, inside, filter="data")
    tokenizer = tmp_path / "state/datasets/tokenizers/prose-v1.json"
    data, other = (
        make_pipeline(home, tokenizer={"file": str(tokenizer)}, dataset__filters=filters)
        for home, filters in zip((tmp_path, tmp_path / "other"), FILTERS.values(), strict=True)
    )
    data.drain()
    pin = data.pin()
    assert golden(data.sets(), pin) == GOLDEN["defaults"]

    asked, sets = parameters_asked(other.pipeline, pin.tokenizer), {}
    build_worker._kept.clear()  # what a test of tokens used
    about = {"val_ratio": asked.val_ratio, "shard_tokens": asked.shard_tokens}
    for file in sorted(data.source.glob("*.parquet")):
        task = build_task(other.home, file, tokenizer, filters=asked.filters.to_mapping(), **about)
        if build_worker.main(task, Recorder())["status"] == "published":  # some are bad, one is there twice
            sets[str(task["key"])[:16]] = set_bytes(Path(task["target"]))
    pin = replace(pin, build_id=build_id(asked), build=asked.to_mapping())
    assert golden(sets, pin) == GOLDEN["all"]
