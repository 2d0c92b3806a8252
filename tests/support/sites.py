"""Code of a test's own in every Python that is started, and in every worker that a fork server makes."""

from __future__ import annotations

from pathlib import Path

_SITE = """
import sys

def begin():
    exec(compile({code!r}, __file__, "exec"), {{"__name__": "sitecustomize", "__file__": __file__}})

if "stoker.kit.fork_worker" in sys.orig_argv[1:4]:
    from stoker.kit.worker_main import Report
    whole = Report.__init__
    def made(*arguments, **named):  # in a forked worker too, which has its own name by then
        begin()
        whole(*arguments, **named)
    Report.__init__ = made
else:
    begin()
"""


def write_site(directory: Path, code: str) -> None:
    """Have the code run where the directory is on PYTHONPATH; sys.orig_argv says in what process it is."""
    (directory / "sitecustomize.py").write_text(_SITE.format(code=code))
