"""Build ids, keys, sets and the pin of a pipeline stay what they were, byte for byte.

Another value here means that each pipeline in the world builds its data again.
"""

from __future__ import annotations

import hashlib
import tarfile
from pathlib import Path
from typing import Any

import pytest

from stoker.store.files import canonical_json
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


@pytest.mark.parametrize("filters", FILTERS)
def test_ids_keys_sets_and_pin_are_those_that_they_were(tmp_path: Path, filters: str) -> None:
    with tarfile.open(KEPT) as archive:
        inside = [one for one in archive if "/source/" in one.name or "/tokenizers/" in one.name]
        archive.extractall(tmp_path, inside, filter="data")
    data = make_pipeline(
        tmp_path,
        tokenizer={"file": str(tmp_path / "state/datasets/tokenizers/prose-v1.json")},
        dataset__filters=FILTERS[filters],
    )
    data.drain()
    pin, sets, digest = data.pin(), data.sets(), hashlib.sha256()
    for files in sets.values():
        for name, content in sorted(files.items()):
            digest.update(name.encode() + content)
    assert {
        "build_id": pin.build_id,
        "keys": [*sets],
        "sets": digest.hexdigest(),
        "pin": hashlib.sha256(canonical_json(pin.to_record())).hexdigest(),
    } == GOLDEN[filters]
