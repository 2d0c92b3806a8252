"""Checks of `train.phases`: contradictions, and notes on a longer context."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from stoker.config.schema_train import Train
from stoker.config.units import format_bytes

Rule = tuple[object, str, str]  # true where the rule is broken, the dotted key, the error text


def phase_rules(train: Train) -> Iterator[Rule]:
    """Yields the rules of the phases; the last step of a run by tokens would move with each of them."""
    in_steps = "phases begin at steps, and a run by tokens has no fixed last one; write train.steps"
    yield train.phases and train.steps is None, "train.phases", in_steps
    names, falls, last = [phase.name for phase in train.phases], train.schedule.decay, train.horizon
    for n, (phase, (before, now)) in enumerate(zip(train.phases, pairwise(train.settings), strict=True)):
        key, start = f"train.phases.{n}", f"train.phases.{n}.from"
        twice = f"an earlier phase has the name {phase.name}, too; give each its own"
        yield phase.name in names[:n], f"{key}.name", twice
        flat = f"decay is where wsd begins to fall, and the schedule is {train.schedule.name}; write a step"
        yield phase.start == "decay" and not falls, start, flat
        if phase.start != "decay" or falls:
            order = f"begins after step {now.start}, and what is before it after step {before.start}; write "
            yield now.start <= before.start, start, f"{order}them in order, each at a step of its own"
            never = f"step {now.start} is not below the run's last, {last}: it would never begin; lower it"
            yield train.steps and now.start >= last, start, never
        micro = now.micro_batch
        odd = f"micro_batch {micro} does not divide global_batch {now.global_batch}; choose one that does"
        wrong = "micro_batch" if phase.micro_batch is not None else "global_batch"
        yield isinstance(micro, int) and now.global_batch % micro, f"{key}.{wrong}", odd
        if phase.rope and (yarn := phase.rope.yarn):
            other = f"{yarn.original_seq_len} is not {train.seq_len}, with which the run began; write that"
            yield yarn.original_seq_len != train.seq_len, f"{key}.rope.yarn.original_seq_len", other


def phase_notes(train: Train) -> Iterator[Rule]:
    """Yields what may surprise of a longer context."""
    for n, (phase, now) in enumerate(zip(train.phases, train.settings[1:], strict=True)):
        key, length, times = f"train.phases.{n}.seq_len", now.seq_len, now.seq_len / train.seq_len
        if times <= 1 or (phase.seq_len is None and phase.rope is None):
            continue
        unseen = f"{length} tokens at the angles of {train.seq_len}, which the model has not seen; add a rope"
        yield now.rope is None, key, unseen
        if now.rope and (yarn := now.rope.yarn) and times > yarn.factor:
            reach = f"{yarn.factor:g} x {train.seq_len}, which yarn's factor allows"
            yield True, key, f"{length} tokens are more than {reach}; raise it to {times:g}"


def phase_memory(train: Train) -> Iterator[str]:
    """Yields a sentence for each phase that has another length: what a pass takes of memory there."""
    for before, now in pairwise(train.settings):
        if now.seq_len != before.seq_len:
            # As a trainer on a CPU estimates it before it tries: float32, without the logits.
            a_token = 4 * train.model.layers * (16 * train.model.width + 6 * train.model.ffn_width)
            size, times = format_bytes(now.seq_len * a_token), now.seq_len / train.seq_len
            told = f"phase {now.name}: a pass of one window of {now.seq_len} tokens takes about {size} for"
            yield f"{told} activations in float32, half in bfloat16, {times:g} x the beginning's"
