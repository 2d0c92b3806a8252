"""The process: its socket, its signals, and its end."""

from __future__ import annotations

import socket
import time
from types import FrameType

import click
import uvicorn

from stoker.serve.app import Service
from stoker.systemd.notify import Notifier


class Server(uvicorn.Server):
    """uvicorn's, which answers while the model is loaded, and while what runs is finished."""

    def __init__(self, service: Service, listener: socket.socket, drain_s: float) -> None:
        app = service.app()
        settings = uvicorn.Config(app, http="h11", ws="none", lifespan="off", log_config=None)
        settings.access_log = settings.server_header = False
        settings.timeout_graceful_shutdown = 1  # a second for who still reads, after all time to drain
        super().__init__(settings)
        self._service, self._drain_s, self._notifier, self._told = service, drain_s, Notifier(), False
        host, port, *_ = listener.getsockname()
        self._place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begins to drain; a second signal ends it at once."""
        self.should_exit = self._service.draining_since is not None
        self._service.draining_since = time.monotonic()
        self._notifier.stopping()

    async def on_tick(self, counter: int) -> bool:
        """Returns whether to end; called ten times a second."""
        service, engine = self._service, self._service.engine
        if engine is not None and not self._told:
            self._told = True
            self._notifier.ready()
            click.echo(f"{service.name}: ready on http://{self._place}")
        self._notifier.watchdog()
        if (since := service.draining_since) is not None:
            busy = engine is not None and (engine.running or engine.waiting)
            if not busy or time.monotonic() > since + self._drain_s:
                return True
        return service.failed() or await super().on_tick(counter)
