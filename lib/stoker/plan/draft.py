"""A plan with the entries that are about to be appended to it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stoker.plan.log import End, Entry, Passed, Plan, Segment, SetPair, segment_key, windows_of


class Draft:
    """Gathers `fresh` entries, and knows of the plan what has to be known for the next one.

    `epoch` is the last segment's, `named` the keys of its sets so far, `spoken` the paths passed over.
    """

    def __init__(self, plan: Plan) -> None:
        self.fresh: list[Entry] = []
        self.length = len(plan.entries)
        self.windows = plan.windows
        self.ended = plan.ended
        self.spoken = {entry.path for entry in plan.entries if isinstance(entry, Passed)}
        segments = plan.segments
        self.epoch = segments[-1].epoch if segments else 0
        ours = [segment for segment in segments if segment.epoch == self.epoch]
        self.named = {key for segment in ours for key, _ in segment.sets}
        self.epoch_windows = sum(segment.windows for segment in ours)

    @property
    def first(self) -> bool:
        """Whether the plan has no segment yet."""
        return self.epoch == 0 and not self.named

    def pass_over(self, found: Iterable[tuple[str, str]]) -> None:
        """Say of sources, with their reasons, that they are passed over: of each once."""
        for path, reason in found:
            if path not in self.spoken:
                self.spoken.add(path)
                self._add(Passed(self.length, path, reason))

    def add_segment(
        self, epoch: int, sets: Sequence[SetPair], tokens: int, *, seq_len: int, seed: int, run_id: str
    ) -> None:
        """Add a segment of these sets, whose train streams hold that many tokens."""
        if epoch != self.epoch:
            self.epoch, self.named, self.epoch_windows = epoch, set(), 0
        windows = max(0, (tokens - 1) // seq_len)
        tail, key = tokens - windows * seq_len, segment_key(seed, self.length)
        self._add(Segment(self.length, epoch, sets, seq_len, windows, tail, key, run_id=run_id))
        self.named.update(key for key, _ in sets)
        self.epoch_windows += windows

    def end(self) -> None:
        """Say, once, that no more data will come."""
        if not self.ended:
            self._add(End(self.length))

    def _add(self, entry: Entry) -> None:
        self.fresh.append(entry)
        self.length += 1
        self.windows += windows_of(entry)
        self.ended = isinstance(entry, End)
