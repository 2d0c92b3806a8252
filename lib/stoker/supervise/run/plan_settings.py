"""What a pipeline file asks of a run's plan and of the data before its first step."""

from __future__ import annotations

from stoker.config.schema import Pipeline
from stoker.plan.growth import GrowthPolicy
from stoker.supervise.run.gates import GateWants


def growth_policy(pipeline: Pipeline) -> GrowthPolicy:
    """How the plan is to grow."""
    train, plan = pipeline.train, pipeline.plan
    return GrowthPolicy(
        seed=train.seed,
        seq_len=train.seq_len,
        global_batch=train.global_batch,
        segment_tokens=plan.segment_tokens,
        order=plan.order,
        hold_s=plan.hold,
        epochs=plan.epochs,
        first_segment_tokens=train.start_when.tokens,
    )


def gate_wants(pipeline: Pipeline) -> GateWants:
    """What has to be there before a new run begins."""
    train = pipeline.train
    return GateWants(
        sets=train.start_when.shard_sets,
        train_tokens=train.start_when.tokens,
        heldout_tokens=train.evaluate.tokens if pipeline.shard.val_ratio else 0,
        seq_len=train.seq_len,
    )
