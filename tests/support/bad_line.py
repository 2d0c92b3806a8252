"""Files behind a bad line, in a repository or at URLs, and the faults that each meets, all from a seed."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.loopback_hub import LoopbackHub, noise
from support.pipelines import DataPipeline
from support.watchdogs import from_hub, from_urls

REPO = "org/chaos"
# A word in the names: each harsh file meets a fault that forces a fetch from the start, the small ones have
# git's blob hash and no sha256 in a repository. Bare ones, at URLs alone, have no sum; some of them become
# another file meanwhile.
GENTLE, HARSH, SMALL, BARE = ".gentle.", ".harsh.", ".small.", ".bare."
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
    bare: int = 0


@dataclass(frozen=True)
class Served:
    """One file as it must come out: one of `contents` (sizes by sha256), and its receipt's `identity`."""

    path: str
    contents: Mapping[str, int]
    identity: str

    @property
    def size(self) -> int:
        """Of its first content."""
        return next(iter(self.contents.values()))


class BadLine:
    """A repository, and each fault of it told to the hub before anything is asked for."""

    gently = ("cdn", "resolve")  # where what is asked for may be refused

    def __init__(self, hub: LoopbackHub, sizes: Sizes, seed: int) -> None:
        self.hub, self._sizes = hub, sizes
        self._random = random.Random(seed)
        self.files = {file.path: file for file in self._put_all()}
        # An escaping path, and a listing that has to be asked for page by page.
        evil = {"type": "file", "oid": "0" * 40, "size": 4, "path": ESCAPES}
        hub.control("set", rate=sizes.rate, page=max(2, len(self.files) // 3), extra=[evil])
        self._commit = self.revision
        for file in self.files.values():
            for fault in self.faults(file):
                hub.fault(path=file.path, **fault)
        for _ in range(sizes.listing_faults):
            hub.fault(**self._listing_fault())

    def pipeline(self, home: Path, **changes: Any) -> DataPipeline:
        """One that fetches all of it."""
        return from_hub(home, self.hub, REPO, {"include": ["*"]}, **changes)

    @property
    def revision(self) -> str:
        """What a complete listing says."""
        return str(self.hub.control("head", repo=f"dataset/{REPO}"))

    @property
    def revision_of_files(self) -> str:
        """What their receipts say."""
        return self._commit

    def bytes_of(self, *kinds: str) -> int:
        """The content of these files."""
        return sum(file.size for file in self.files.values() if any(kind in file.path for kind in kinds))

    def served(self, *kinds: str) -> int:
        """The body bytes that were sent of them."""
        return sum(self.hub.served(kind) for kind in kinds)

    def _put_all(self) -> Iterator[Served]:
        sizes = self._sizes
        kinds = [GENTLE] * sizes.gentle + [HARSH] * sizes.harsh + [SMALL] * sizes.small + [BARE] * sizes.bare
        self._random.shuffle(kinds)
        for number, kind in enumerate(kinds):
            low, high = (1, SMALL_BYTES) if kind == SMALL else (sizes.size // 2, sizes.size * 3 // 2)
            suffix = "json" if kind == SMALL else "parquet"
            yield self.put(
                f"{number // 20}/{number:03}{kind}{suffix}", self.noise(self._random.randrange(low, high))
            )

    def noise(self, size: int) -> bytes:
        """Content that no other file has."""
        return noise(size, self._random.randrange(1 << 60))

    def put(self, path: str, data: bytes) -> Served:
        """Store a file."""
        sha256 = self.hub.put(path, data, repo=f"dataset/{REPO}")
        git = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        return Served(path, {sha256: len(data)}, f"git:{git}" if SMALL in path else f"sha256:{sha256}")

    # Faults

    def faults(self, file: Served) -> Iterator[dict[str, Any]]:
        """What this file meets."""
        draw, on = self._random, self.gently[-1]
        if SMALL in file.path:
            if draw.random() < 0.5:
                kind = draw.choice(("stall", "reset", "short", "wrong"))
                yield {"kind": kind, "on": on, "after": draw.randrange(file.size), "seconds": 60.0}
            else:
                yield self._refusal(on)
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
        either = draw.choice(self.gently)
        return draw.choice(
            [
                *self.more_faults(file),
                {"kind": "stall", "after": after, "seconds": 60.0},
                {"kind": "trickle", "after": after, "seconds": 0.05},
                {"kind": "reset", "after": after},
                {"kind": "short", "after": after},
                self._refusal(either),
                self._refusal(either),
                {"kind": "slow_head", "on": either, "seconds": 60.0},
                {"kind": "loop", "on": either},
                {"kind": "elsewhere", "on": self.gently[0]},
            ]
        )

    def more_faults(self, file: Served) -> list[dict[str, Any]]:
        """Such as only a repository knows."""
        size = self._random.choice((file.size - 1, file.size + 1000))
        return [{"kind": "length", "size": size}, {"kind": "expired", "on": "resolve"}]

    def _refusal(self, on: str) -> dict[str, Any]:
        after = self._random.choice((None, "1", "date 1"))
        code = self._random.choice((429, 429, 500, 502, 503))
        return {"kind": "status", "on": on, "code": code, "retry_after": after}

    def _listing_fault(self) -> dict[str, Any]:
        skip = self._random.randrange(4 * self._sizes.listing_faults)
        return {**self._refusal("api"), "skip": skip}


class BadUrls(BadLine):
    """The same at URLs."""

    gently = ("url",)

    def pipeline(self, home: Path, **changes: Any) -> DataPipeline:
        return from_urls(home, self._lines(), **changes)

    @property
    def revision(self) -> str:
        text = "".join(f"{line}\n" for line in self._lines())
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def revision_of_files(self) -> str:
        return ""

    def _lines(self) -> list[str]:
        return [
            f"{self.hub.url(path)} {'' if BARE in path else next(iter(file.contents))}"
            for path, file in self.files.items()
        ]

    def put(self, path: str, data: bytes) -> Served:
        sha256 = self.hub.put(path, data, repo="urls")
        if BARE not in path:
            return Served(path, {sha256: len(data)}, f"sha256:{sha256}")
        identity = "url:" + hashlib.sha256(self.hub.url(path).encode()).hexdigest()
        other = self.noise(len(data) + self._random.choice((-1000, 0, 1000)))
        return Served(
            path,
            {sha256: len(data), self.hub.put(f"{path}.v1", other, repo="urls"): len(other)},
            identity,
        )

    def faults(self, file: Served) -> Iterator[dict[str, Any]]:
        yield from super().faults(file)
        if BARE in file.path and self._random.random() < 0.5:
            yield {"kind": "etag", "after": self._random.randrange(file.size)}

    def more_faults(self, file: Served) -> list[dict[str, Any]]:
        return []  # whoever is told a wrong length, and no sum, is not to know better
