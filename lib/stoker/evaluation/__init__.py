"""Suites of tasks for a checkpoint's model, run by lm-evaluation-harness, and their comparison."""
