"""Stoker's processes by role, and the machine by node_exporter."""

from __future__ import annotations

from dashlib.panels import BAD, GOOD, IDLE, WARN, Board, Panel, Row

_NOT_HERE = "this kernel does not tell it"
_ROLE = "{{daemon}}: {{role}}"
_DISKS = 'job="node",device!~"(loop|ram|sr|zram|dm-).*"'
_NETS = 'job="node",device!~"(lo|veth.*|docker.*|br-.*|ifb.*)"'


def _of_roles(metric: str) -> dict[str, str]:
    """A figure by role, without the roles that have none."""
    return {_ROLE: f"stoker_process_{metric}{{*}} > 0"}


def _rates_of_roles(total: str) -> dict[str, str]:
    return {_ROLE: f"rate(stoker_process_{total}{{*}}[$__rate_interval]) > 0"}


_PROCESSES = (
    Panel(
        "Memory (PSS)",
        "bytes",
        _of_roles("pss_bytes"),
        "Proportional set size, measured once a minute: shared pages are counted once in the sum, so this "
        "stack is what Stoker takes.",
        stacked=True,
        empty="not yet measured",
    ),
    Panel(
        "Memory (RSS)",
        "bytes",
        _of_roles("rss_bytes"),
        "Resident set size; shared pages count in each process.",
    ),
    Panel(
        "Swapped out",
        "bytes",
        _of_roles("swap_bytes"),
        "What lies in swap. A trainer in swap is slow.",
        empty="nothing is swapped out",
    ),
    Panel(
        "CPU cores used",
        "none",
        _rates_of_roles("cpu_seconds_total"),
        "CPU seconds a second, by role.",
        stacked=True,
    ),
    Panel(
        "Read from disk",
        "binBps",
        _rates_of_roles("read_bytes_total"),
        "Bytes a second that the processes made the disks read.",
        empty="nothing was read",
    ),
    Panel(
        "Written to disk",
        "binBps",
        _rates_of_roles("write_bytes_total"),
        "Bytes a second that the processes made the disks write.",
        empty="nothing was written",
    ),
    Panel(
        "Major faults",
        "none",
        _rates_of_roles("major_faults_total"),
        "Page faults a second that had to read from disk; many mean that memory is short.",
        empty="no major fault",
    ),
    Panel(
        "Processes",
        "none",
        {_ROLE: "stoker_processes{*} > 0"},
        "Processes by role.",
        stacked=True,
    ),
    Panel(
        "Headroom",
        "bytes",
        {"{{daemon}}": "stoker_memory_headroom_bytes{*}"},
        "What may still be taken before the kernel kills: the least of the machine and the cgroups.",
    ),
)

_DAEMONS = (
    Panel(
        "CPU of the daemons",
        "percentunit",
        {"{{daemon}}": "rate(stoker_daemon_cpu_seconds_total{*}[$__rate_interval])"},
        "Share of one core.",
        width=6,
    ),
    Panel(
        "Memory of the daemons",
        "bytes",
        {"{{daemon}}": "stoker_daemon_rss_bytes{*}"},
        "Resident memory of each daemon.",
        width=6,
    ),
    Panel(
        "Since the loop's last beat",
        "s",
        {"{{daemon}}": "stoker_daemon_clock_seconds{*} - stoker_daemon_beat_timestamp_seconds{*}"},
        "Time since a daemon's loop last went round. It beats at least every few seconds.",
        width=6,
        thresholds=((None, GOOD), (60, WARN), (180, BAD)),
    ),
    Panel(
        "Threads",
        "none",
        {"{{daemon}}": "stoker_daemon_threads{*}"},
        "Threads of each daemon; they do not grow.",
        width=6,
    ),
    Panel(
        "Requests waiting",
        "none",
        {"{{daemon}}": "stoker_requests_waiting{*}"},
        "Requests of operators and timers that wait for an answer.",
        width=6,
    ),
    Panel(
        "Uptime",
        "s",
        {"{{daemon}}": "time() - stoker_daemon_start_time_seconds{*}"},
        "Time since each daemon started.",
        width=6,
    ),
    Panel(
        "Clock against Prometheus",
        "s",
        {"{{daemon}}": "stoker_daemon_clock_seconds{*} - timestamp(stoker_daemon_clock_seconds{*})"},
        "The daemon's clock at a scrape less that of Prometheus.",
        width=6,
        minimum=None,
    ),
    Panel(
        "Answers Prometheus",
        "none",
        {"{{daemon}}": 'up{*,job="stoker"}'},
        "Whether each daemon was scraped.",
        kind="states",
        width=6,
        colours=dict.fromkeys(("download_watchdog", "stage_shard", "train_supervisor"), GOOD),
    ),
)

_NODE = (
    Panel(
        "CPU of the machine",
        "percentunit",
        {
            "{{mode}}": 'avg by (mode) (rate(node_cpu_seconds_total{job="node",mode!~"idle|guest.*"}'
            "[$__rate_interval]))"
        },
        "Share of all cores by mode.",
        stacked=True,
        maximum=1,
    ),
    Panel(
        "Memory of the machine",
        "bytes",
        {
            "used": 'node_memory_MemTotal_bytes{job="node"} - node_memory_MemAvailable_bytes{job="node"}',
            "swap used": 'node_memory_SwapTotal_bytes{job="node"} - node_memory_SwapFree_bytes{job="node"}',
            "memory": 'node_memory_MemTotal_bytes{job="node"}',
        },
        "Memory that is taken and cannot be had back, and swap in use.",
    ),
    Panel(
        "Pressure",
        "percentunit",
        {
            "CPU": 'rate(node_pressure_cpu_waiting_seconds_total{job="node"}[$__rate_interval])',
            "disk": 'rate(node_pressure_io_waiting_seconds_total{job="node"}[$__rate_interval])',
            "memory": 'rate(node_pressure_memory_waiting_seconds_total{job="node"}[$__rate_interval])',
        },
        "Share of the time in which some process waited for CPU, disk or memory (PSI).",
        empty=_NOT_HERE,
    ),
    Panel(
        "Disks of the machine",
        "binBps",
        {
            "{{device}} read": f"rate(node_disk_read_bytes_total{{{_DISKS}}}[$__rate_interval])",
            "{{device}} written": f"rate(node_disk_written_bytes_total{{{_DISKS}}}[$__rate_interval])",
        },
        "Bytes a second of each block device.",
        empty=_NOT_HERE,
    ),
    Panel(
        "Disks busy",
        "percentunit",
        {"{{device}}": f"rate(node_disk_io_time_seconds_total{{{_DISKS}}}[$__rate_interval])"},
        "Share of the time in which a device had something to do.",
        maximum=1,
        empty=_NOT_HERE,
    ),
    Panel(
        "Network",
        "binBps",
        {
            "{{device}} in": f"rate(node_network_receive_bytes_total{{{_NETS}}}[$__rate_interval])",
            "{{device}} out": f"rate(node_network_transmit_bytes_total{{{_NETS}}}[$__rate_interval])",
        },
        "Bytes a second of each network device.",
        empty="no network device but loopback",
    ),
    Panel(
        "File systems",
        "percentunit",
        {
            "{{mountpoint}}": 'node_filesystem_avail_bytes{job="node",fstype!~"tmpfs|overlay|squashfs|ramfs"}'
            ' / (node_filesystem_size_bytes{job="node",fstype!~"tmpfs|overlay|squashfs|ramfs"} > 0)'
        },
        "Share of each file system that is available.",
        maximum=1,
        thresholds=((None, BAD), (0.05, WARN), (0.1, IDLE)),
        empty="only file systems in memory",
    ),
    Panel(
        "Load",
        "short",
        {
            "1 minute": 'node_load1{job="node"}',
            "15 minutes": 'node_load15{job="node"}',
            "cores": 'count(node_cpu_seconds_total{job="node",mode="idle"})',
        },
        "Processes that run or wait for a disk, beside the number of cores.",
    ),
    Panel(
        "The machine's clock",
        "s",
        {
            "offset by NTP": 'node_timex_offset_seconds{job="node"}',
            "estimated error": 'node_timex_estimated_error_seconds{job="node"}',
        },
        "What the kernel knows of its clock's error.",
        minimum=None,
        empty=_NOT_HERE,
    ),
)

MACHINE = Board(
    "machine",
    "Machine",
    "Stoker's processes by role, its daemons, and the machine.",
    (Row("Processes", _PROCESSES), Row("Daemons", _DAEMONS), Row("The machine (node_exporter)", _NODE)),
)
