"""Progress in words, its pace, and the terminal's last line."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import termios
from collections.abc import Iterator

import pytest

from stoker.cli.pipeline.status import report_lines
from stoker.kit.terminal import Footer
from stoker.observe.progress import Rate, progress_line, shard_parts
from stoker.observe.verdict import Facts
from support.shard_state import Shard

STATUS = {
    "files_done": 12,
    "files_of": 40,
    "bytes_done": 31_000,
    "bytes_of": 100_000,
    "parquet_bytes_per_second": 45_200_000,
    "tokens_per_second": 11_300_000,
    "eta_s": 125,
    "workers": {"build": 2, "stage": 1},
    "sources": {"quarantined": 1},
}


class TestPace:
    def test_it_is_measured_over_the_last_while_only(self) -> None:
        pace = Rate(10.0)
        assert pace.left_s(5) is None
        for second in range(21):
            pace.note(second * 2 if second < 10 else 20 + (second - 10) * 8, float(second))
        assert pace.per_second == 8.0
        assert pace.left_s(40) == 5.0

    def test_a_moment_is_no_measure_and_what_shrank_goes_on_from_there(self) -> None:
        pace = Rate(10.0)
        pace.note(0, 0.0)
        pace.note(50, 1.0)
        assert pace.per_second == 0.0
        pace.note(100, 4.0)
        assert pace.per_second == 25.0
        pace.note(10, 5.0)
        assert pace.per_second == 20.0
        pace.note(60, 10.0)
        assert pace.per_second == 15.0

    def test_many_looks_a_second_are_not_all_kept(self) -> None:
        pace = Rate(10.0)
        for step in range(10_000):
            pace.note(step, step / 1000)
        assert len(pace._seen) < 50
        assert pace.per_second == pytest.approx(1000, rel=0.01)


class TestWords:
    def test_a_line_tells_files_share_time_left_rates_activities_and_what_was_set_aside(self) -> None:
        assert progress_line(shard_parts(STATUS), {}, 200) == (
            "12/40 files  31.0 %  2 min 5 s left  45.2 MB/s  11.3 M tokens/s  build 2, stage 1  1 quarantined"
        )

    @pytest.mark.parametrize("width", range(0, 110, 7))
    def test_a_narrow_terminal_is_told_the_weightiest(self, width: int) -> None:
        line = progress_line(shard_parts(STATUS), STATUS, width)
        assert len(line) <= width
        assert width < 11 or line.startswith("12/40 files")
        assert width < 40 or "2 min 5 s left" in line

    def test_what_stands_still_says_why_and_not_when_it_ends(self) -> None:
        stuck = {
            **STATUS,
            "trouble": "staging waits for space on hot: it takes 3 GiB; free some",
            "workers": {},
        }
        assert "waits: staging waits for space on hot: it takes 3 GiB" in list(shard_parts(stuck))
        assert not any("left" in part for part in shard_parts(stuck))

    def test_status_shows_the_same_while_the_loop_runs(self) -> None:
        body = {
            **STATUS,
            "tokens": {"train": 5, "val": 1},
            "documents": {"train": 2, "val": 1},
            "sources": {"proven": 12},
        }
        about = {"state": "running", "running": True, "pid": 1, "since": "", "metrics": "", "body": body}
        quiet = {"state": "stopped", "running": False, "body": {}}
        daemons = {"download_watchdog": quiet, "stage_shard": about, "train_supervisor": quiet}
        lines = "\n".join(report_lines(Facts("p", "FILE", daemons)))
        assert re.search(r"building +45.2 MB/s, 11.3 M tokens/s", lines)
        daemons["stage_shard"] = {**about, "running": False, "state": "stopped"}
        stopped = "\n".join(report_lines(Facts("p", "FILE", daemons)))
        assert "MB/s" not in stopped


def test_each_disk_tells_the_number_of_its_file_system(shard: Shard) -> None:
    """Alerts about disks that have the same fire once."""
    disks = shard.status()["disks"]
    assert disks["state"]["device"] == shard.layout.state.stat().st_dev
    page = shard.context.metrics.text().decode()
    for place in ("hot", "state"):
        shown = float(page.split(f'stoker_shard_disk_device{{disk="{place}"}} ')[1].split()[0])
        assert shown == disks[place]["device"]


class TestFooter:
    @pytest.fixture
    def terminal(self) -> Iterator[tuple[int, int]]:
        ours, its = pty.openpty()
        fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 30, 0, 0))
        yield ours, its
        os.close(ours)
        os.close(its)

    def test_a_line_is_written_over_and_logs_stand_above_it(self, terminal: tuple[int, int]) -> None:
        ours, its = terminal
        footer = Footer(its, {"TERM": "xterm"})
        footer.show(lambda width: "x" * width)
        footer.show(lambda width: "x" * width)
        os.write(its, footer.above(b"log\n"))
        footer.clear()
        x = b"x" * 29
        expected = b"\r\x1b[2K" + x + b"\r\x1b[2Klog\r\n" + x + b"\r\x1b[2K"
        said = b""
        while len(said) < len(expected):
            said += os.read(ours, 4096)
        assert said == expected
        assert footer.above(b"log\n") == b"log\n"

    def test_several_lines_are_written_over_and_so_is_what_a_narrower_terminal_folded(
        self, terminal: tuple[int, int]
    ) -> None:
        ours, its = terminal
        footer = Footer(its, {"TERM": "xterm"})
        footer.show(lambda _: "one", lambda _: "two", colours=["32", "0"])
        os.write(its, footer.above(b"log\n"))
        shown = b"\x1b[32mone\x1b[0m\r\ntwo"
        expected = b"\r\x1b[2K" + shown + b"\r\x1b[2K\x1b[A\x1b[2Klog\r\n" + shown
        footer.show(lambda width: "x" * width)
        expected += b"\r\x1b[2K\x1b[A\x1b[2K" + b"x" * 29
        fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 25, 0, 0))
        footer.clear()
        expected += b"\r\x1b[2K\x1b[A\x1b[2K"
        said = b""
        while len(said) < len(expected):
            said += os.read(ours, 4096)
        assert said == expected

    def test_a_sentence_is_folded_below_itself_and_coloured_only_where_that_is_wanted(
        self, terminal: tuple[int, int]
    ) -> None:
        plain, coloured = (
            Footer(terminal[1], {"TERM": "xterm", **more}).line("a.parquet is not whole", "warning", "shard ")
            for more in ({"NO_COLOR": "1"}, {})
        )
        first, *rest = plain.decode().splitlines()
        assert re.fullmatch(r"\d\d:\d\d:\d\d shard warning:", first)
        assert rest == [" " * 15 + words for words in ("a.parquet is", "not whole")]
        assert b"\x1b[33m" in coloured and b"\x1b" not in plain and b"warning:" not in coloured

    def test_nothing_is_shown_where_no_terminal_is_or_a_dumb_one(self, terminal: tuple[int, int]) -> None:
        reading, writing = os.pipe()
        for footer in (Footer(terminal[1], {"TERM": "dumb"}), Footer(terminal[1], {}), Footer(writing)):
            footer.show(lambda width: "x")
            assert footer.above(b"log\n") == b"log\n"
        os.close(writing)
        assert os.read(reading, 10) == b""
        os.close(reading)
