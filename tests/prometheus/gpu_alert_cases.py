"""What makes each alert about GPUs fire, and what nearly does: series as promtool writes them."""

from __future__ import annotations

from alert_case import OWN, Case

GPU = {"gpu": "0"}
GIB = str(2**30)
CASES = (
    Case(
        "StokerGpuSamplerDown",
        15,
        "The GPU driver does not answer for p; GPUs seen before: 2.",
        {"train:stoker_gpus_expected": "2x30", "train:stoker_gpu_sampler_up": "0x30"},
        ({"train:stoker_gpu_sampler_up": "NaNx30"},),
        by=OWN,
    ),
    Case(
        "StokerGpuSamplerDown",
        15,
        "The GPU driver does not answer for p; GPUs seen before: 0.",
        {"train:stoker_gpus_expected": "NaNx30", "train:stoker_gpu_sampler_up": "0x30"},
        ({"train:stoker_gpu_sampler_up": "1x30"},),
        by=OWN,
    ),
    Case(
        "StokerGpuLost",
        5,
        "GPUs of p that fell off the bus: 1.",
        {
            "train:stoker_gpus_expected": "2x30",
            'train:stoker_gpu_present{gpu="0"}': "1x30",
            'train:stoker_gpu_present{gpu="1"}': "0x30",
        },
        ({'train:stoker_gpu_present{gpu="1"}': "1x30"}, {"train:stoker_gpus_expected": "NaNx30"}),
    ),
    Case(
        "StokerGpuXidHardware",
        10,
        "Xid errors of hardware or driver on GPU 0 of p within an hour: 1.",
        {'train:stoker_gpu_xid_total{gpu="0",class="hardware"}': "0x5 1x20"},
        ({'train:stoker_gpu_xid_total{gpu="0",class="hardware"}': "0x20"},),
        by=OWN,
        more={**GPU, "class": "hardware"},
    ),
    Case(
        "StokerGpuXidApplication",
        10,
        "Xid errors of a program on GPU 0 of p within an hour: 2.",
        {'train:stoker_gpu_xid_total{gpu="0",class="application"}': "0x5 2x20"},
        ({'train:stoker_gpu_xid_total{gpu="0",class="application"}': "0x20"},),
        by=OWN,
        more={**GPU, "class": "application"},
    ),
    Case(
        "StokerGpuEccUncorrected",
        10,
        "Memory errors that ECC did not correct on GPU 0 of p within an hour: 1.",
        {'train:stoker_gpu_ecc_errors_total{gpu="0",kind="uncorrected"}': "17x5 18x20"},
        (
            {
                'train:stoker_gpu_ecc_errors_total{gpu="0",kind="uncorrected"}': "17x20",
                'train:stoker_gpu_ecc_errors_total{gpu="0",kind="corrected"}': "17+9x20",
            },
        ),
        by=OWN,
        more={**GPU, "kind": "uncorrected"},
    ),
    Case(
        "StokerGpuRemapPending",
        1,
        "GPU 0 of p has rows to remap (1).",
        {'train:stoker_gpu_remap_pending{gpu="0"}': "1x9"},
        ({'train:stoker_gpu_remap_pending{gpu="0"}': "0x9"},),
        by=OWN,
        more=GPU,
    ),
    Case(
        "StokerGpuThrottled",
        30,
        "GPU 0 of p is slowed down 100% of the time.",
        {'train:stoker_gpu_clock_event{gpu="0",reason="hw_thermal_slowdown"}': "1x60"},
        (
            {
                'train:stoker_gpu_clock_event{gpu="0",reason="hw_thermal_slowdown"}': "0x60",
                'train:stoker_gpu_clock_event{gpu="0",reason="sw_power_cap"}': "1x60",
            },
        ),
        more=GPU,
    ),
    Case(
        "StokerGpuHot",
        15,
        "GPU 0 of p has 91 degrees Celsius.",
        {'train:stoker_gpu_temperature_celsius{gpu="0"}': "91x60"},
        ({'train:stoker_gpu_temperature_celsius{gpu="0"}': "70x60"},),
        by=OWN,
        more=GPU,
    ),
    Case(
        "StokerGpuIdle",
        40,
        "GPU 0 is busy 5% of the time while p trains.",
        {
            'train:stoker_gpu_utilization_ratio{gpu="0"}': "0.05x60",
            'train:stoker_trainer_phase{phase="train"}': "1x60",
        },
        (
            {'train:stoker_trainer_phase{phase="train"}': "0x60"},
            {'train:stoker_gpu_utilization_ratio{gpu="0"}': "0.9x60"},
            {  # the trainer is on another card
                'train:stoker_gpu_process_memory_bytes{gpu="0",process="trainer"}': "0x60",
                'train:stoker_gpu_process_memory_bytes{gpu="1",process="trainer"}': "9x60",
            },
        ),
        by=OWN,
        more=GPU,
    ),
    Case(
        "StokerGpuShared",
        20,
        "Others hold 20% of the memory of GPU 0 of p.",
        {
            'train:stoker_gpu_process_memory_bytes{gpu="0",process="other"}': "2x60",
            'train:stoker_gpu_memory_total_bytes{gpu="0"}': "10x60",
        },
        ({'train:stoker_gpu_process_memory_bytes{gpu="0",process="other"}': "0x60"},),
        by=OWN,
        more={**GPU, "process": "other"},
    ),
    Case(
        "StokerGpuSpill",
        10,
        "The trainer of p works in the machine's memory; 1GiB are in use on the cards.",
        {
            'train:stoker_gpu_memory_used_bytes{gpu="0"}': f"{GIB}x30",
            'train:stoker_gpu_process_memory_bytes{gpu="0",process="trainer"}': f"{GIB}x30",
            'train:stoker_gpu_spill{certainty="certain"}': "1x30",
            'train:stoker_gpu_spill{certainty="suspected"}': "0x30",
        },
        ({'train:stoker_gpu_spill{certainty="certain"}': "0x30"},),
    ),
)
