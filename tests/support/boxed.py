"""Pipelines of the tests in a throw-away systemd."""

from __future__ import annotations

from support.sites import SMALL_TRAINER

# A drop-in: the trainer is the one without torch.
OF_TESTS = (
    f"[Service]\nEnvironment=PYTHONPATH={SMALL_TRAINER} STOKER_TEST_TRAINER=small STOKER_TEST_STEP_S=0.05\n"
)
DROP_IN = "stoker-@.service.d/90-tests.conf"


def head(name: str) -> str:
    """What every such pipeline begins with; all its ports are free ones."""
    return f"""
name: {name}
state: /var/lib/stoker/{name}
hot: /srv/fast/{name}
stage: {{settle: 0s, free_floor: 0}}
metrics: {{ports: {{download: 0, shard: 0, train: 0}}}}
"""


def training(name: str, checkpoint: str) -> str:
    """A pipeline that trains for as long as the test lasts."""
    return (
        head(name)
        + f"""
dataset: {{name: words, source: {{kind: folder, path: /srv/parquet}}, filters: {{min_chars: 1}}}}
tokenizer: {{train: {{vocab_size: 300, train_bytes: 100kB}}}}
shard: {{val_ratio: 0.05, release: never}}
plan: {{segment_tokens: 1000}}
train:
  steps: 1000000
  start_when: {{tokens: 1000, shard_sets: 1}}
  model: {{layers: 1, width: 16, heads: 2, kv_heads: 2, ffn_width: 32}}
  seq_len: 32
  global_batch: 4
  evaluate: {{every_steps: 1000, tokens: 1024}}
  checkpoint: {{{checkpoint}}}
"""
    )
