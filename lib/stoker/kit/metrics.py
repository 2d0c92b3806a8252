"""A daemon's Prometheus metrics: one registry, named by one rule, served on loopback.

Names are `stoker_<thing>_<unit>[_total]`; every sample carries the pipeline; labels have few values.
"""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import socket
import socketserver
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import prometheus_client
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from stoker.kit.process import sample_process
from stoker.store.errors import ConfigError, UnavailableError

PREFIX = "stoker_"
PORT_KEYS = {"download_watchdog": "download", "stage_shard": "shard", "train_supervisor": "train"}
CLIENT_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Figure:
    """A metric read from the daemon's status.

    `path` leads to the value; each `*` in it stands for the values of a label. A mapping counts as its
    length. A counter's name ends in `_total`.
    """

    name: str
    doc: str
    path: str
    labels: str = ""


# Metrics of every daemon: its size and CPU time, its version, its events.
OWN = (
    Figure("daemon_rss_bytes", "Resident memory of the daemon", "daemons.*.rss_bytes", "daemon"),
    Figure("daemon_threads", "Threads of the daemon", "daemons.*.threads", "daemon"),
    Figure("daemon_start_time_seconds", "When it started, Unix time", "daemons.*.started", "daemon"),
    Figure("daemon_cpu_seconds_total", "CPU time the daemon used", "daemons.*.cpu_s", "daemon"),
    Figure("build_info", "What runs here; always 1", "build.*.*", "version python"),
    Figure("events_total", "What happened, by event word", "events.*", "event"),
)


class Metrics:
    """A daemon's metrics and the small server that serves them.

    `figures` are read from `status`, the daemon's current status; the metrics in OWN come with every daemon.
    `events` counts events by event word.
    """

    def __init__(self, daemon: str, pipeline: str) -> None:
        self.daemon, self._pipeline = daemon, pipeline
        self.figures: Sequence[Figure] = ()
        self.status: Mapping[str, Any] = {}
        self.events: Counter[str] = Counter()
        self._started = time.time()
        self._build = {metadata.version("stoker"): {platform.python_version(): 1}}
        self._server: _Server | None = None
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics; the registry calls this at each scrape."""
        me = sample_process(os.getpid())
        mine = {"rss_bytes": me.rss_bytes, "cpu_s": me.cpu_s, "started": self._started}
        mine["threads"] = threading.active_count()
        own = {"daemons": {self.daemon: mine}, "build": self._build, "events": self.events.copy()}
        for figures, status in ((OWN, own), (self.figures, self.status)):
            for figure in figures:
                kind = CounterMetricFamily if figure.name.endswith("_total") else GaugeMetricFamily
                labels = ("pipeline", *figure.labels.split())
                family = kind(f"{PREFIX}{figure.name}", figure.doc, labels=labels)
                for values, value in _found(status, figure.path.split(".")):
                    family.add_metric((self._pipeline, *values), value)
                yield family

    def text(self) -> bytes:
        """Returns the exposition text that a scrape gets."""
        return generate_latest(self._registry)

    def serve(self, address: str, port: int) -> int:
        """Serves /metrics from a thread; returns the bound port (port 0 asks for any free port).

        Raises UnavailableError when the port is taken, ConfigError when this machine cannot serve on the
        address at all.
        """
        key = f"metrics.ports.{PORT_KEYS.get(self.daemon, self.daemon)}"
        try:
            self._server = _Server(address, port, self._registry)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise UnavailableError(
                    f"{key}: port {port} on {address} is taken; stop what uses it, or set {key} to another "
                    "port (0 = any free one)"
                ) from error
            raise ConfigError(
                f"metrics cannot be served on {address} port {port}: {error.strerror or error}; "
                f"correct metrics.address or {key}"
            ) from error
        return int(self._server.server_address[1])

    def close(self) -> None:
        if self._server is not None:
            self._server.end()
            self._server = None


def _found(status: Any, path: Sequence[str], *labels: str) -> Iterator[tuple[tuple[str, ...], float]]:
    """Yields the values at a path of a status, each with its labels."""
    if not path:
        yield labels, len(status) if isinstance(status, Mapping) else float(status or 0)
    elif path[0] == "*":
        for label, inner in status.items():
            yield from _found(inner, path[1:], *labels, label)
    elif status.get(path[0]) is not None:
        yield from _found(status[path[0]], path[1:], *labels)


class _Handler(prometheus_client.MetricsHandler):
    timeout = CLIENT_TIMEOUT_S


class _Server(socketserver.ThreadingTCPServer):
    """Answers scrapes from a thread.

    Not an HTTPServer: that asks the resolver for a host name, maybe for a minute.
    """

    allow_reuse_address = daemon_threads = True

    def __init__(self, address: str, port: int, registry: CollectorRegistry) -> None:
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        super().__init__((address, port), _Handler.factory(registry))
        self._is_ending = False
        self._thread = threading.Thread(target=self._answer, name="metrics", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stops answering at once; serve_forever() would check for its end only every half second."""
        self._is_ending = True
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)  # wakes the waiting thread
        self._thread.join(1.0)
        self.server_close()

    def _answer(self) -> None:
        while not self._is_ending:
            self.handle_request()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores errors of a request: the client went away."""
