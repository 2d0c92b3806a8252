"""Checks of `train.phases`: contradictions, and notes on a longer context."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from stoker.config.schema_train import Train

Rule = tuple[object, str, str]  # true where the rule is broken, the dotted key, the error text


def phase_rules(train: Train) -> Iterator[Rule]:
    """Yields the rules of the phases; the last step of a run by tokens would move with each of them."""
    in_steps = "phases begin at steps, and a run by tokens has no fixed last one; write train.steps"
    yield train.phases and train.steps is None, "train.phases", in_steps
    names = [phase.name for phase in train.phases]
    for n, (phase, (before, now)) in enumerate(zip(train.phases, pairwise(train.settings), strict=True)):
        key, start = f"train.phases.{n}", f"train.phases.{n}.from"
        twice = f"an earlier phase has the name {phase.name}, too; give each its own"
        yield phase.name in names[:n], f"{key}.name", twice
        falls = train.schedule.decay is not None
        flat = f"decay is where wsd begins to fall, and the schedule is {train.schedule.name}; write a step"
        yield phase.start == "decay" and not falls, start, flat
        if phase.start != "decay" or falls:
            order = f"begins after step {now.start}, and what is before it after step {before.start}; write "
            yield now.start <= before.start, start, f"{order}them in order, each at a step of its own"
            never = f"step {now.start} is not below the run's last, {train.horizon}: it would never begin"
            yield (
                train.steps and now.start >= train.horizon,
                start,
                f"{never}; lower it, or raise train.steps",
            )
        micro = now.micro_batch
        odd = f"micro_batch {micro} does not divide global_batch {now.global_batch}; choose one that does"
        wrong = "micro_batch" if phase.micro_batch is not None else "global_batch"
        yield isinstance(micro, int) and now.global_batch % micro, f"{key}.{wrong}", odd
        if (yarn := phase.rope and phase.rope.yarn) is not None:
            original = (
                f"{yarn.original_seq_len} is not train.seq_len {train.seq_len}, with which the run began"
            )
            other = yarn.original_seq_len != train.seq_len
            yield other, f"{key}.rope.yarn.original_seq_len", f"{original}; write that"


def phase_notes(train: Train) -> Iterator[Rule]:
    """Yields what may surprise of a longer context."""
    longest = max(train.settings, key=lambda one: one.seq_len)
    for n, (phase, now) in enumerate(zip(train.phases, train.settings[1:], strict=True)):
        key, length, yarn = f"train.phases.{n}.seq_len", now.seq_len, now.rope and now.rope.yarn
        if phase.seq_len is None and phase.rope is None:
            continue
        unseen = f"{length} tokens at the angles of {train.seq_len}: positions that the model has not seen "
        yield length > train.seq_len and now.rope is None, key, f"{unseen}look like none; give it a rope"
        if yarn is not None:
            reach = f"{yarn.factor * yarn.original_seq_len:.0f} = factor {yarn.factor:g} x original_seq_len"
            beyond = f"{length} tokens are beyond {reach}; raise the factor to {length / train.seq_len:g}"
            yield length > yarn.factor * yarn.original_seq_len, key, beyond
        if length > train.seq_len and now is longest:
            times = (
                f"{length / train.seq_len:g} x the beginning's: the activations of a pass take as much more"
            )
            advice = "micro_batch auto is tried anew there, recompute: blocks needs less"
            yield True, key, f"a window has {length} tokens, {times}; {advice}"
            few = f"{train.evaluate.tokens} tokens fill no window of the {length} of {phase.name}; raise it"
            yield 0 < train.evaluate.tokens <= length, "train.evaluate.tokens", few
