"""The memory of a process and everything below it."""

from __future__ import annotations

from stoker.kit.process.process_id import children_tree
from stoker.kit.process.sampler import sample_process


def sample_tree(pid: int) -> int:
    """Resident bytes of a process and all its living descendants; shared pages count in each; 0 when gone."""
    pids = (pid, *(child.pid for child in children_tree(pid)))
    return sum(sample_process(each).rss_bytes for each in pids)
