"""Collects the entries by which a plan grows, and writes them in the version of a line that they need."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from stoker.plan.log import Closed, End, Entry, Passed, Plan, Segment, newest, segment_key, windows_of

if TYPE_CHECKING:
    from stoker.plan.growth import GrowthPolicy, PlanSource

NO_CUT = 1 << 62  # windows


class Draft:
    """Collects the `fresh` entries, and keeps the facts of the plan that the next entry depends on.

    `epoch` is the last segment's, `named` the keys of its sets so far, `spoken` the paths passed over. From
    the first entry that has parts on, all have; then `rest` is what the epoch's last part left of its last
    set, from token `first` on.
    """

    def __init__(self, plan: Plan, sources: Sequence[PlanSource], policy: GrowthPolicy) -> None:
        self.policy = policy
        self.fresh: list[Entry] = []
        self.chosen: list[tuple[str, str]] = []  # for fresh segments; a part may name fewer
        self.length = len(plan.entries)
        self.windows = plan.windows
        self.ended = plan.ended
        self.spoken = {entry.path for entry in plan.entries if isinstance(entry, Passed)}
        segments = plan.segments
        self.epoch = segments[-1].epoch if segments else 0
        ours = [segment for segment in segments if segment.epoch == self.epoch]
        self.named = {key for segment in ours for key, _ in segment.sets}
        self.epoch_windows = sum(segment.windows for segment in ours)
        last = newest(plan.entries)
        self.has_parts, self.closed = last is not None and bool(last.dataset), isinstance(last, Closed)
        self.rest: PlanSource | None = None
        self.first = 0
        if isinstance(last, Segment) and last.dataset:
            self.rest, self.first = _rest(last, sources)

    @property
    def seq_len(self) -> int:
        """Returns the sequence length of the next segment."""
        begun = (cut.seq_len for cut in reversed(self.policy.cuts) if cut.windows <= self.windows)
        return next(begun, self.policy.seq_len)

    def wanted(self, epoch: int) -> int:
        """Returns the tokens of the next segment; a segment of whole sets takes more."""
        tokens, seq_len = self.policy.segment_tokens, self.seq_len
        if epoch == 0 and not self.named and self.policy.first_segment_tokens is not None:
            tokens = min(tokens, self.policy.first_segment_tokens)
        # at least enough for one window
        tokens = max(1, tokens // seq_len) * seq_len + 1 if self.has_parts else max(tokens, seq_len + 1)
        return min(tokens, self._to_cut() * seq_len + 1)

    def is_enough(self, chosen: Sequence[PlanSource]) -> bool:
        """Whether these make a segment; one of whole sets may be without a window, one of parts may not."""
        return _tokens(chosen) > self.seq_len if self.has_parts else bool(chosen)

    def pass_over(self, found: Iterable[tuple[str, str]]) -> None:
        """Adds an entry for each passed source with its reason, once per source."""
        for path, reason in found:
            if path not in self.spoken:
                self.spoken.add(path)
                self.add(Passed(self.length, path, reason, self.policy.dataset if self.has_parts else ""))

    def add_segment(self, epoch: int, chosen: Sequence[PlanSource]) -> None:
        """Adds a segment of the sets of these sources: of parts, once whole sets reach over a cut."""
        if epoch != self.epoch:
            self.close()
            self.epoch, self.named, self.epoch_windows, self.closed = epoch, set(), 0, False
        tokens, seq_len = _tokens(chosen), self.seq_len
        windows = max(0, (tokens - 1) // seq_len)
        self.has_parts = self.has_parts or windows > self._to_cut()
        sets = [(source.key, source.manifest_sha256) for source in chosen]
        self.chosen += sets
        tail, key = tokens - windows * seq_len, segment_key(self.policy.seed, self.length)
        run_id = self.policy.run_id
        segment = Segment(self.length, epoch, sets, seq_len, windows, tail, key, run_id=run_id)
        if self.has_parts:
            segment = self._part_of(segment, chosen)
        self.add(segment)
        self.named.update(key for key, _ in segment.sets)
        self.epoch_windows += segment.windows

    def close(self) -> None:
        """Closes the epoch, if it has parts; what is left of its last set is no target."""
        if self.has_parts and not self.closed:
            left = 0 if self.rest is None else self.rest.train_tokens
            self.add(Closed(self.length, self.policy.dataset, self.epoch, left))
        self.rest, self.first, self.closed = None, 0, True

    def add(self, entry: Entry) -> None:
        self.fresh.append(entry)
        self.length += 1
        self.windows += windows_of(entry)
        self.ended = isinstance(entry, End)

    def _to_cut(self) -> int:
        """Returns the windows up to the next cut."""
        ahead = (cut.windows for cut in self.policy.cuts if cut.windows > self.windows)
        return next(ahead, NO_CUT) - self.windows

    def _part_of(self, whole: Segment, chosen: Sequence[PlanSource]) -> Segment:
        """Returns the part of a segment that is to be planned now, and notes where it ends."""
        windows = min(whole.windows, (self.wanted(whole.epoch) - 1) // whole.seq_len)
        stop, start, sets, first = windows * whole.seq_len, 0, [], self.first
        for source, pair in zip(chosen, whole.sets, strict=True):
            if source.train_tokens and start <= stop:
                sets.append(pair)
                self.rest = replace(source, train_tokens=start + source.train_tokens - stop)
                self.first = stop - start + (first if len(sets) == 1 else 0)
            start += source.train_tokens
        dataset = self.policy.dataset
        return replace(whole, dataset=dataset, first=first, sets=sets, windows=windows, tail_tokens=0)


def _tokens(sources: Iterable[PlanSource]) -> int:
    return sum(source.train_tokens for source in sources)


def _rest(last: Segment, sources: Sequence[PlanSource]) -> tuple[PlanSource | None, int]:
    """Returns what a part left of its last set, and its first token there.

    A pending source while a set of the part may still be that source's; None where one is lost for good.
    """
    gone = {"quarantined", "duplicate"}
    known = {one.key: one for one in sources if one.train_tokens and one.standing not in gone}
    found = [known[key] for key, _ in last.sets if key in known]
    if len(found) < len(last.sets):
        return next((one for one in sources if one.standing == "pending"), None), 0
    first = last.stop - _tokens(found[:-1])
    return replace(found[-1], train_tokens=found[-1].train_tokens - first), first
