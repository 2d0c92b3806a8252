"""A repository behind a bad line: its files, and the faults that each of them meets, all from a seed."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from support.loopback_hub import LoopbackHub, noise

REPO = "org/chaos"
# A word in the names: each harsh file meets a fault that forces a fetch from the start, the small ones have
# git's blob hash and no sha256.
GENTLE, HARSH, SMALL = ".gentle.", ".harsh.", ".small."
SMALL_BYTES = 50_000
ESCAPES = "../evil.parquet"


@dataclass(frozen=True)
class Sizes:
    """How many files, and bytes of one, about (of those fetched by sha256); `rate` is bytes a second of one
    connection."""

    gentle: int
    harsh: int
    small: int
    size: int
    rate: int
    listing_faults: int


@dataclass(frozen=True)
class Served:
    """One file as it must come out."""

    path: str
    size: int
    sha256: str
    git: str

    @property
    def identity(self) -> str:
        """As a receipt has it."""
        return f"git:{self.git}" if SMALL in self.path else f"sha256:{self.sha256}"


class BadLine:
    """What is served, and each fault of it told to the hub before anything is asked for."""

    def __init__(self, hub: LoopbackHub, sizes: Sizes, seed: int) -> None:
        self.hub, self._sizes = hub, sizes
        self._random = random.Random(seed)
        self.files = {file.path: file for file in self._put_all()}
        # Escaping paths, and a page of the listing that has to be asked for several times.
        evil = {"type": "file", "oid": "0" * 40, "size": 4, "path": ESCAPES}
        hub.control("set", rate=sizes.rate, page=max(2, len(self.files) // 3), extra=[evil])
        for file in self.files.values():
            for fault in self._faults(file):
                hub.fault(path=file.path, **fault)
        for _ in range(sizes.listing_faults):
            hub.fault(**self._listing_fault())

    def bytes_of(self, *kinds: str) -> int:
        """The content of these files."""
        return sum(file.size for file in self.files.values() if any(kind in file.path for kind in kinds))

    def served(self, *kinds: str) -> int:
        """The body bytes that were sent of them."""
        return sum(self.hub.served(kind) for kind in kinds)

    def _put_all(self) -> Iterator[Served]:
        size = self._sizes.size
        kinds = [GENTLE] * self._sizes.gentle + [HARSH] * self._sizes.harsh + [SMALL] * self._sizes.small
        self._random.shuffle(kinds)
        for number, kind in enumerate(kinds):
            if kind == SMALL:
                yield self._put(
                    f"{number // 20}/{number:03}{kind}json", self._random.randrange(1, SMALL_BYTES)
                )
            else:
                each = self._random.randrange(size // 2, size * 3 // 2)
                yield self._put(f"{number // 20}/{number:03}{kind}parquet", each)

    def _put(self, path: str, size: int) -> Served:
        data = noise(size, self._random.randrange(1 << 60))
        sha256 = self.hub.put(path, data, repo=f"dataset/{REPO}")
        git = hashlib.sha1(b"blob %d\0" % size + data).hexdigest()
        return Served(path, size, sha256, git)

    # Faults

    def _faults(self, file: Served) -> Iterator[dict[str, Any]]:
        draw = self._random
        if SMALL in file.path:
            if draw.random() < 0.5:
                kind = draw.choice(("stall", "reset", "short", "wrong"))
                yield {"kind": kind, "on": "resolve", "after": draw.randrange(file.size), "seconds": 60.0}
            else:
                yield self._refusal("resolve")
            return
        if HARSH in file.path:
            kind = draw.choice(("wrong", "etag", "no_range"))
            if kind == "no_range":  # felt only by who asks for a range: after something else went wrong
                yield {"kind": "reset", "after": draw.randrange(file.size)}
            yield {"kind": kind, "after": draw.randrange(file.size)}
            return
        for _ in range(draw.choice((1, 1, 2, 3))):
            yield self._gentle(file)

    def _gentle(self, file: Served) -> dict[str, Any]:
        draw, after = self._random, self._random.randrange(file.size)
        either = draw.choice(("cdn", "resolve"))
        return draw.choice(
            [
                {"kind": "stall", "after": after, "seconds": 60.0},
                {"kind": "trickle", "after": after, "seconds": 0.05},
                {"kind": "reset", "after": after},
                {"kind": "short", "after": after},
                {"kind": "length", "size": draw.choice((file.size - 1, file.size + 1000))},
                self._refusal(either),
                self._refusal(either),
                {"kind": "slow_head", "on": either, "seconds": 60.0},
                {"kind": "loop", "on": either},
                {"kind": "elsewhere", "on": "cdn"},
                {"kind": "expired", "on": "resolve"},
            ]
        )

    def _refusal(self, on: str) -> dict[str, Any]:
        after = self._random.choice((None, "1", "date 1"))
        code = self._random.choice((429, 429, 500, 502, 503))
        return {"kind": "status", "on": on, "code": code, "retry_after": after}

    def _listing_fault(self) -> dict[str, Any]:
        skip = self._random.randrange(4 * self._sizes.listing_faults)
        return {**self._refusal("api"), "skip": skip}
