"""The pipeline file, key by key, with its defaults; sizes are bytes, durations seconds, counts integers."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from stoker.config.reading import (
    AutoOrCount,
    DatasetName,
    Devices,
    Epochs,
    FilePath,
    Flag,
    Follow,
    Name,
    Natural,
    Number,
    Positive,
    PositiveNumber,
    PositiveSeconds,
    PositiveSize,
    Precision,
    Seconds,
    Share,
    ShareBelowOne,
    Size,
    Text,
)
from stoker.store.layout import HotLayout, RuntimeLayout, StateLayout, WarmLayout, runtime_dir


class Section(BaseModel):
    """One mapping of the file: frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True, protected_namespaces=())


class Source(Section):
    """Where the parquet comes from; `include` empty means every *.parquet."""

    kind: Literal["hub", "urls", "folder"]
    path: FilePath | None = None
    include: tuple[Text, ...] = ()
    exclude: tuple[Text, ...] = ()
    follow: Follow = False
    repo: Text | None = None
    repo_type: Literal["dataset", "model", "space"] = "dataset"
    revision: Text = "main"
    endpoint: Text | None = None
    token_file: FilePath | None = None
    urls_file: FilePath | None = None


class Limit(Section):
    """How much of the source to take at most."""

    files: Positive | None = None
    rows: Positive | None = None
    tokens: Positive | None = None


class Filters(Section):
    """Which rows become documents; chars are Unicode code points, `at_least` is by column."""

    min_chars: Natural | None = 80
    max_chars: Positive | None = None
    languages: tuple[Text, ...] | None = None
    at_least: dict[Text, Number] = {}


class Dataset(Section):
    """One dataset: its source and what of it is taken."""

    name: DatasetName
    version: Positive = 1
    source: Source
    limit: Limit = Limit()
    text_column: Text = "text"
    filters: Filters = Filters()


class Download(Section):
    """Transfer policy; `stall` is the longest time without a byte, the rates are bytes a second."""

    files_at_once: Positive = Field(default=4, le=256)
    stall: PositiveSeconds = 300.0
    min_rate: Size = 20 * 2**10
    bandwidth: PositiveSize | None = None
    attempts: Positive = 5


class Stage(Section):
    """How far staging runs ahead; `settle` is how long a file must be unchanged before it is read."""

    queue_files: Positive = 8
    queue_bytes: PositiveSize = 20 * 2**30
    copies: AutoOrCount = "auto"
    free_floor: Size = 20 * 2**30
    settle: Seconds = 180.0


class TokenizerTraining(Section):
    """Train a byte-level BPE of vocab_size entries on the first train_bytes of text."""

    vocab_size: Positive = Field(default=32000, ge=257, le=2**24)
    train_bytes: PositiveSize = 200 * 10**6


class Tokenizer(Section):
    """Either trained here or given as a file; exactly one of the two is set."""

    train: TokenizerTraining | None = None
    file: FilePath | None = None
    engine: Literal["auto", "fastokens", "tokenizers"] = "auto"


class Commit(Section):
    """How often a builder makes its work durable: whichever comes first."""

    every: PositiveSeconds = 2.0
    bytes: PositiveSize = 64 * 2**20


class BuilderMemory(Section):
    """Resident bytes of a builder: above `soft` another takes over at a commit, above `hard` it is killed."""

    soft: Size = 320 * 2**20
    hard: Size = 2**30


class Shard(Section):
    """How shard sets are built; `shard_tokens` is tokens a file."""

    val_ratio: ShareBelowOne = 0.005
    shard_tokens: Positive = 100_000_000
    workers: AutoOrCount = "auto"
    commit: Commit = Commit()
    memory: BuilderMemory = BuilderMemory()
    release: Literal["never", "after_proof", "after_sync"] = "after_proof"


class Evict(Section):
    """When shard sets leave the hot disk for warm: while less than `target_free` bytes are free (None: a
    tenth of the disk), but never below so many sets and train tokens on hot."""

    target_free: Size | None = None
    keep_hot_sets: Natural = 1
    min_active_tokens: Natural = 0


class Plan(Section):
    """The order of training data; `epochs` None is unlimited."""

    order: Literal["listing", "arrival"] = "listing"
    hold: Seconds = 1800.0
    segment_tokens: Positive = 10**9
    epochs: Epochs = None


class StartWhen(Section):
    """What must be proven before a run begins, unless the data is complete with less."""

    tokens: Natural = 100_000_000
    shard_sets: Positive = 1


class ModelShape(Section):
    """A decoder-only transformer: `width` is the residual stream's, `ffn_width` the hidden size of SwiGLU."""

    layers: Positive
    width: Positive
    heads: Positive
    kv_heads: Positive
    ffn_width: Positive
    rope_theta: PositiveNumber = 10_000.0
    norm_eps: PositiveNumber = 1e-5
    tie_embeddings: Flag = True


class Optimizer(Section):
    """AdamW; `clip` is the largest norm of the whole gradient, None clips nothing."""

    name: Literal["adamw"] = "adamw"
    lr: PositiveNumber = 3.0e-4
    betas: tuple[ShareBelowOne, ShareBelowOne] = (0.9, 0.95)
    weight_decay: Share = 0.1
    clip: PositiveNumber | None = 1.0


class Schedule(Section):
    """Linear warm-up, then a cosine to `min_ratio` of the learning rate at the run's last step."""

    name: Literal["cosine"] = "cosine"
    warmup_steps: Natural = 2000
    min_ratio: Share = 0.1


class Evaluate(Section):
    """How often the held-out loss is taken, and over how many tokens; 0 tokens takes none."""

    every_steps: Positive | None = 1000
    tokens: Natural = 131_072


class Checkpoint(Section):
    """When checkpoints are sealed (by time, by steps or both) and which are kept; milestones are steps."""

    every: PositiveSeconds | None = 1800.0
    every_steps: Positive | None = None
    keep_last: Positive = 3
    keep_every: Positive | None = None
    milestones: tuple[Positive, ...] = ()
    mirror: Flag = True


class Launcher(Section):
    """How the trainer is started."""

    processes: Positive = 1
    devices: Devices = "auto"


class Train(Section):
    """One training run; its horizon is `steps` or `tokens`, exactly one of the two."""

    run: Name = "main"
    seed: Natural = Field(default=1, le=2**63 - 1)
    steps: Positive | None = None
    tokens: Positive | None = None
    start_when: StartWhen = StartWhen()
    model: ModelShape
    seq_len: Positive = Field(default=2048, ge=2, le=2**20)
    global_batch: Positive = 128
    micro_batch: AutoOrCount = "auto"
    precision: Precision = "auto"
    deterministic: Flag = False
    optimizer: Optimizer = Optimizer()
    schedule: Schedule = Schedule()
    evaluate: Evaluate = Evaluate()
    checkpoint: Checkpoint = Checkpoint()
    launcher: Launcher = Launcher()
    command: tuple[Text, ...] | None = None
    on_checkpoint: Text | None = None

    @property
    def horizon(self) -> int:
        """The run's last step: `steps`, or as many whole batches as `tokens` hold (at least one)."""
        if self.steps is not None:
            return self.steps
        return max(1, (self.tokens or 0) // (self.seq_len * self.global_batch))


class BackoffPolicy(Section):
    """The pause between launches: the first, doubling up to the most."""

    first: PositiveSeconds = 5.0
    most: PositiveSeconds = 600.0


class Supervise(Section):
    """How long a trainer may take to stop, may stand still, and how often it may fail without progress."""

    stop_time: PositiveSeconds = 300.0
    hang_limit: PositiveSeconds = 900.0
    no_progress_launches: Positive = 5
    backoff: BackoffPolicy = BackoffPolicy()


class Quarantine(Section):
    """The budget of what is kept for a look: the newest stays, older ones go.

    `keep_files` and `keep_bytes` hold for each kind of thing but checkpoints, which have `keep_checkpoints`;
    `revalidate` is how often a quarantined file is decoded again, None for never.
    """

    keep_checkpoints: Natural = 3
    keep_files: Natural = 100
    keep_bytes: Size = 20 * 2**30
    revalidate: PositiveSeconds | None = 86_400.0


class Ports(Section):
    """A port a daemon; 0 is any free one."""

    download: Natural = Field(default=9811, le=65535)
    shard: Natural = Field(default=9812, le=65535)
    train: Natural = Field(default=9813, le=65535)


class Metrics(Section):
    """Where each daemon serves its metrics."""

    address: Text = "127.0.0.1"
    ports: Ports = Ports()


class Pipeline(Section):
    """One pipeline file, checked; every path in it is absolute."""

    name: Name
    state: FilePath
    hot: FilePath
    warm: FilePath | None = None
    dataset: Dataset
    download: Download = Download()
    stage: Stage = Stage()
    tokenizer: Tokenizer
    shard: Shard = Shard()
    evict: Evict = Evict()
    plan: Plan = Plan()
    train: Train
    supervise: Supervise = Supervise()
    quarantine: Quarantine = Quarantine()
    metrics: Metrics = Metrics()
    notify: tuple[Text, ...] = ()
    _file: Path = PrivateAttr(default=Path())

    @property
    def file(self) -> Path:
        """The pipeline file this came from, absolute."""
        return self._file

    @property
    def owner(self) -> str:
        """What the owner locks of its directories say."""
        return f"pipeline {self.name} (state {self.state})"

    @cached_property
    def layout(self) -> StateLayout:
        """Where everything lies in the state directory."""
        return StateLayout(self.state)

    @cached_property
    def hot_layout(self) -> HotLayout:
        """Where everything lies on the hot disk."""
        return HotLayout(self.hot)

    @cached_property
    def warm_layout(self) -> WarmLayout | None:
        """Where everything lies on the warm disk; None for a pipeline without one."""
        return None if self.warm is None else WarmLayout(self.warm)

    @property
    def source_root(self) -> Path:
        """The directory below which every source file lies: the folder itself, or where downloads land."""
        if self.dataset.source.path is not None:
            return self.dataset.source.path
        return (self.warm_layout or self.hot_layout).landing(self.dataset.name)

    @property
    def source_home(self) -> Path:
        """The directory that can be seen, and is not empty, whenever the source files' disk is mounted."""
        return self.dataset.source.path or self.warm or self.hot

    @property
    def runtime(self) -> RuntimeLayout:
        """Where this user's processes keep sockets and status; creates a private directory if it must."""
        return RuntimeLayout(runtime_dir(self.name, self.state))
