"""The laws of a run's data, by counting: what must hold of a `support.plan_world.World` whatever happened.

Nothing here uses the arithmetic of positions, skips or residency that the world is driven by.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from stoker.plan.log import Closed, End, Passed, Plan, Segment
from stoker.plan.positions import Position, books
from stoker.plan.timelines import skips
from support.plan_world import Run, Window, World, WorldSource

Token = tuple[str, int]  # key of its set, number in it


def windows_in_order(plan: Plan) -> list[Window]:
    return [(entry.n, offset) for entry in plan.segments for offset in range(entry.windows)]


def windows_before(plan: Plan, position: Position) -> int:
    before = sum(entry.windows for entry in plan.segments if entry.n < position.entry)
    return before + position.offset


def keys_between(run: Run, windows: int, upto: Position | None) -> set[str]:
    """Sets of segments with windows beyond so many, of entries before the one that `upto` begins."""
    end, found = 0, set()
    for entry in run.plan.segments:
        end += entry.windows
        if entry.windows and end > windows and (upto is None or entry.n < upto.entry):
            found |= {key for key, _ in entry.sets}
    return found


def needed_keys(run: Run, position: Position) -> set[str]:
    """Sets that a trainer at a position reads as far as its launch goes."""
    return keys_between(run, windows_before(run.plan, position), run.reach)


def kept_keys(run: Run) -> set[str]:
    """Sets that must not leave: of segments from the low-water mark on to where a launch goes."""
    marks = [windows_before(run.plan, one.position) for one in run.checkpoints[-run.keep_last :]]
    return keys_between(run, min(marks, default=0), run.reach)


def least_keys(run: Run) -> set[str]:
    """Sets without which the run cannot continue: from its low-water mark on to where a batch is full."""
    begin = windows_before(run.plan, run.committed.position)
    ahead = [window for window in windows_in_order(run.plan)[begin:] if window not in run.skipped]
    batch = ahead[: run.global_batch]
    enough = len(batch) == run.global_batch
    marks = [windows_before(run.plan, one.position) for one in run.checkpoints[-run.keep_last :]]
    return keys_between(run, min(marks, default=0), Position(batch[-1][0] + 1, 0) if enough else None)


def check_history(run: Run) -> None:
    """No window twice, none lost, in the plan's order: with the skipped and the rest they are the plan."""
    everything = windows_in_order(run.plan)
    place = {window: number for number, window in enumerate(everything)}
    done = [window for step in run.history for window in step.windows]
    numbers = [place[window] for window in done]
    assert numbers == sorted(set(numbers)), "a window was trained on twice, or out of order"
    assert not run.skipped & set(done), "a skipped window was trained on"
    before = set(everything[: windows_before(run.plan, run.position)])
    assert set(done) <= before, "a window beyond the position was trained on"
    assert before <= set(done) | run.skipped, "a window was lost"
    for one in run.checkpoints:
        assert one.position == run.history[one.step - 1].position
    rest = set(everything) - set(done) - run.skipped
    _check_books(run, len(done), len(run.skipped), len(rest))


def _check_books(run: Run, applied: int, skipped: int, rest: int) -> None:
    exhausted = run.finished == "data_exhausted"
    account = books(run.plan, run.position, skips(run.timelines), exhausted=exhausted)
    left = (rest, 0) if exhausted else (0, rest)
    told = account.applied, account.skipped, (account.remainder, account.ahead)
    assert told == (applied, skipped, left), "applied, skipped and the rest are not the plan"
    assert account.applied + account.skipped + account.remainder + account.ahead == account.windows
    if exhausted:
        assert rest < run.global_batch
    seq_len = {entry.n: entry.seq_len for entry in run.plan.segments}
    assert account.tokens == sum(seq_len[entry] for step in run.history for entry, _ in step.windows)


def check_plan(world: World, run: Run) -> None:
    """Every token of the named sets is in a window or a tail, and each set at most once in an epoch.

    But for parts, which go on in the set where the one before ended: `check_parts`.
    """
    tokens = {source.key: source.tokens for source in world.sources}
    named: set[tuple[int, str]] = set()
    whole = [entry for entry in run.plan.segments if not entry.dataset]
    assert list(run.plan.segments[: len(whole)]) == whole, "a segment of whole sets follows a part"
    for entry in whole:
        held = sum(tokens[key] for key, _ in entry.sets)
        assert held == entry.windows * entry.seq_len + entry.tail_tokens
        assert entry.tail_tokens <= entry.seq_len or entry.windows == 0
        ours = {(entry.epoch, key) for key, _ in entry.sets}
        assert len(ours) == len(entry.sets)
        assert not named & ours, "a set is named twice in an epoch"
        named |= ours
    assert [entry.n for entry in run.plan.entries] == list(range(len(run.plan.entries)))
    check_parts(run.plan, tokens, named)


def check_parts(plan: Plan, tokens: Mapping[str, int], named: Collection[tuple[int, str]]) -> None:
    """Token by token: in each epoch with parts every token but the first is a target once, up to the tail.

    `named` are the sets of segments of whole sets, with their epochs.
    """
    streams: dict[int, list[Token]] = {}  # the tokens of an epoch's sets, as its parts name them
    targets: dict[int, list[Token]] = {}
    closed: dict[int, int] = {}
    for entry in plan.entries:
        if isinstance(entry, Closed):
            assert entry.epoch not in closed
            closed[entry.epoch] = entry.tail_tokens
        if not isinstance(entry, Segment) or not entry.dataset:
            continue
        assert entry.epoch not in closed, "a part follows the end of its epoch"
        assert entry.windows >= 1
        stream = [(key, number) for key, _ in entry.sets for number in range(tokens[key])]
        known = streams.setdefault(entry.epoch, [])
        known += [token for token in stream if token not in known]
        read = set[str]()
        for window in range(entry.windows):
            first = entry.first + window * entry.seq_len
            seen = stream[first : first + entry.seq_len + 1]
            assert len(seen) == entry.seq_len + 1, "a window reaches beyond its sets"
            targets.setdefault(entry.epoch, []).extend(seen[1:])
            read |= {key for key, _ in seen}
        assert read == {key for key, _ in entry.sets}, "a set is named that no window reads"
        assert not {(entry.epoch, key) for key in read} & set(named), "a set is named twice in an epoch"
    for epoch, stream in streams.items():
        done = targets[epoch]
        assert done == stream[1 : len(done) + 1], "a token is no target, or twice"
        assert closed.get(epoch, len(stream) - len(done)) == len(stream) - len(done), "the tail is another"


def check_appended(world: World, run: Run, known: int) -> None:
    """What was just appended names sets that lie on hot to stay, and leaves none out that was due before."""
    place = {source.key: number for number, source in enumerate(world.sources)}
    published = {source.key for source in world.sources if source.published}
    epoch, named = 0, set[str]()
    parts = {entry.epoch for entry in run.plan.segments if entry.dataset}
    closed = set[int]()
    longest = max(run.policy.seq_len, *(cut.seq_len for cut in run.policy.cuts), 0)

    def left_out(named: set[str], epoch: int) -> int:
        """Tokens of sets that the epoch lacks; parts name no set that has none, or lies in the tail."""
        less = sum(world.source(key).tokens for key in published - named)
        return max(0, less - longest + 1) if epoch in parts else len(published - named)

    for entry in run.plan.entries:
        if isinstance(entry, Closed):
            assert left_out(named, epoch) == 0 or entry.n < known, "an epoch is closed too early"
            closed.add(epoch)  # what comes later is for the next epochs
        if isinstance(entry, Passed | Closed):
            continue
        if isinstance(entry, End) or entry.epoch != epoch:
            is_there = entry.n < known or epoch in closed or left_out(named, epoch) == 0
            assert is_there, "an epoch ends without a set that was there"
            epoch, named = (epoch, named) if isinstance(entry, End) else (entry.epoch, set())
        if isinstance(entry, Segment):
            keys = {key for key, _ in entry.sets}
            begun = keys - named  # a part may go on in a set that another began
            named |= keys
            if entry.n < known:
                continue
            assert all(world.source(key).hot for key in keys), "a set that is not hot was named"
            start, cuts = run.plan.starts[entry.n], run.policy.cuts
            lengths = [run.policy.seq_len, *(cut.seq_len for cut in cuts if cut.windows <= start)]
            assert (entry.seq_len, entry.run_id) == (lengths[-1], run.policy.run_id)
            over = [cut for cut in cuts if start < cut.windows < start + entry.windows]
            assert not over, "an entry reaches over a cut"
            if run.policy.order == "listing" or epoch > 0:
                last = max((place[key] for key in begun), default=0)
                due = {key for key in published if place[key] < last and world.source(key).tokens}
                assert due <= named, "a set was overtaken by one behind it in the listing"


def check_trainer_can_read(world: World, run: Run) -> None:
    """A running trainer finds every set that is planned from its position on."""
    if run.running:
        for key in needed_keys(run, run.position):
            source = world.source(key)
            assert source.here, "a set that a trainer will read left hot"
            assert source.hot, "a set that a trainer will read is about to leave hot"


def check_needs_are_told(world: World, run: Run) -> None:
    """What a resume reads is on hot, or on its way there: asked for, leaving first, or being rebuilt."""
    if run.finished:
        return
    for key in keys_between(run, windows_before(run.plan, run.committed.position), None):
        source = world.source(key)
        coming = key in run.wants or key in world.hydrating
        assert source.hot or source.state == "pending" or coming, "nobody asks for a set that is needed"


def check_disk(world: World) -> None:
    """The reserve is never touched: not by what lies there, nor by what is promised."""
    assert world.used_bytes == sum(source.bytes for source in world.sources if source.here)
    promised = 2 * world.checkpoint_bytes * len(world.runs)
    promised += sum(source.bytes for source in world.sources if source.key in world.hydrating)
    assert world.total_bytes - world.used_bytes - promised >= world.floor_bytes, "the reserve is touched"
    assert world.room() == world.total_bytes - world.used_bytes - promised - world.floor_bytes
    for source in world.sources:
        assert not (source.hot and not source.here), "a record says hot of a set that is not there"


def check_evicted(world: World, keys: list[str]) -> None:
    """What was chosen to leave may leave: proven on warm, planned by nobody, and the last sets stay."""
    chosen = [world.source(key) for key in keys]
    assert all(source.hot and source.warm for source in chosen)
    kept = {key for run in world.runs if not run.finished for key in kept_keys(run)}
    assert not kept & set(keys), "a planned set leaves hot"
    hot = [source for source in world.sources if source.hot]
    if chosen:
        assert len(hot) - len(chosen) >= world.keep_sets
    wanted = {key for run in world.runs if not run.finished for key in run.wants}
    if wanted & set(keys):
        lacking = [key for key in wanted if world.source(key).evicted and key not in world.hydrating]
        assert lacking, "a wanted set leaves though none is missing"


def evictable(
    world: World,
    wanted: Callable[[Run], Collection[str]] = lambda run: run.wants,
    kept: Callable[[Run], Collection[str]] = kept_keys,
) -> list[WorldSource]:
    """Sets that may leave by the letter of the rule: neither planned nor wanted, and the last sets stay."""
    going = [run for run in world.runs if not run.finished]
    stay = {key for run in going for key in (*wanted(run), *kept(run))}
    hot = [source for source in world.sources if source.hot]
    if len(hot) <= world.keep_sets:
        return []
    return [source for source in hot if source.warm and source.key not in stay]
