"""`stoker serve`: answers completions over HTTP with the model of a bundle."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click

from stoker.cli.bundles import proven_bundle, use_transformers
from stoker.cli.options import PATH, TEXT, FiniteRange, one_line
from stoker.config.units import parse_size
from stoker.store.errors import ConfigError, StokerError, UnavailableError, UsageError
from stoker.systemd.credentials import credential, read_secret, secret_file_flaw

CREDENTIAL = "serve-key"


@click.command(epilog="Example: stoker serve /srv/models/fineweb --port 8000")
@click.argument("directory", metavar="DIR", type=PATH)
@click.option("--host", default="127.0.0.1", help="Another than loopback needs a key.")
@click.option("--port", default=8000, type=click.IntRange(0, 65535), help="0: any free one.")
@click.option("--name", type=TEXT, help="What clients call the model; else the name of DIR.")
@click.option("--key-file", type=PATH, help="Holds the key that clients send; else systemd's serve-key.")
@click.option("--cache-bytes", metavar="SIZE", type=parse_size, default="1GiB", help="For texts, as 512MiB.")
@click.option("--queue", default=64, type=click.IntRange(0), help="Where more wait, the next gets 429.")
@click.option("--drain-seconds", default=30.0, type=FiniteRange(0), help="After SIGTERM, for what runs.")
def serve(  # noqa: PLR0917 - click passes an argument per option
    directory: Path,
    host: str,
    port: int,
    name: str | None,
    key_file: Path | None,
    cache_bytes: int,
    queue: int,
    drain_seconds: float,
) -> None:
    """Answer OpenAI's /v1/completions and /v1/chat/completions with the model in DIR, a bundle.

    DIR is proven by its SHA256SUMS first; nothing is fetched. Where there is a key, all but /healthz and
    /readyz ask for it. Exit codes: 64 the cache is too small, or another host without a key; 65
    DIR is not whole; 69 the port is taken, or a package is missing; 70 the engine died.
    """
    use_transformers("serve", "fastapi", "uvicorn")
    key = read_key(key_file, os.environ)
    if key_file is not None and (flaw := secret_file_flaw(key_file, "the key")):
        click.echo(one_line(flaw), err=True)
    if key is None and not _is_loopback(host):
        raise UsageError(f"--host {host}: any machine could ask; give --key-file, or stay on 127.0.0.1")
    bundle = proven_bundle(directory)
    from stoker.serve.app import Service
    from stoker.serve.engine import Engine
    from stoker.serve.server import Server

    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family)
    except (OSError, UnicodeError) as error:  # UnicodeError: no name of a host
        raise UnavailableError(f"cannot listen on {host}, port {port}: {error}") from error
    loading = ThreadPoolExecutor(1).submit(Engine, bundle, cache_bytes, queue)
    service = Service(name or directory.absolute().name, key, loading)
    Server(service, listener, drain_seconds).run([listener])
    if not loading.done():  # stopped before the model is there: its libraries cannot be interrupted
        os._exit(0)
    engine = loading.result()  # or why there is none
    if not engine.alive():
        raise StokerError("the thread that computes died, and the server ends; its last words are above")
    engine.stop()


def read_key(file: Path | None, environ: Mapping[str, str]) -> str | None:
    """Returns the key of the file, else of systemd's credential; None without, or for the unit's default."""
    file = file or credential(CREDENTIAL, environ)
    return None if file is None else read_secret(file, "the key", ConfigError)


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
