"""What all datasets share: disks and their space, workers and their memory, requests, the runs."""

from __future__ import annotations

from stoker.kit.daemon import DaemonContext
from stoker.kit.workers.pool import WorkerPool
from stoker.store.layout import STAGE_SHARD
from stokerd.sharding.disk import Disk
from stokerd.sharding.inbox import Inbox, QuarantineState
from stokerd.sharding.memory import Memory
from stokerd.sharding.pauses import Pauses
from stokerd.sharding.runs import Runs
from stokerd.sharding.space import Space
from stokerd.sharding.work import Progress, Work


class Machine:
    """The slices that a dataset has its part of. Pool and retries know a job by its subject alone."""

    def __init__(self, context: DaemonContext, pool: WorkerPool[Work] | None = None) -> None:
        pipeline, self.context = context.pipeline, context
        memory = pipeline.shard.memory
        self.pool = pool or WorkerPool[Work](
            f"{context.layout.state}:{STAGE_SHARD}",
            context.waiter,
            record=context.events.record,
            most_rss_bytes=memory.hard,
            recycle_rss_bytes=memory.soft,
        )
        self.hot = Disk("hot", pipeline.hot)
        self.warm = None if pipeline.warm is None else Disk("warm", pipeline.warm)
        self.disks = (self.hot,) if self.warm is None else (self.hot, self.warm)
        self.memory = Memory(context)
        self.pauses = Pauses(context, self.memory, self.pool, self.disks)
        self.space, self.runs, self.progress = Space(context), Runs(context), Progress()
        self.inbox, self.quarantine = Inbox(context), QuarantineState(context.layout)

    def is_idle(self) -> bool:
        """Whether no worker but the listers is busy."""
        return not self.pool.busy.keys() - {disk.lister for disk in self.disks}
