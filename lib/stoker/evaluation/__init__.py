<<<<<<< HEAD
"""Measures checkpoints with lm-evaluation-harness and compares them: evaluate."""
=======
"""Suites of tasks for a checkpoint's model, run by lm-evaluation-harness, and their comparison."""
>>>>>>> ev-harness
