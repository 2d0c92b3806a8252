"""Measures checkpoints with lm-evaluation-harness and compares them: evaluate."""
