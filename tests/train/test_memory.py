"""What memory there is, and an error instead of a killed process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from ladle.train.memory import MIB, ResidentMemory, cgroups, out_of_memory

GIB = 1 << 30


def tree(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def test_cgroup_v2_with_limits_at_two_levels(tmp_path: Path) -> None:
    tree(
        tmp_path,
        {
            "fs/memory.stat": "inactive_file 5\n",
            "fs/a/memory.max": f"{8 * GIB}\n",
            "fs/a/memory.current": f"{3 * GIB}\n",
            "fs/a/memory.stat": f"anon 7\ninactive_file {GIB}\n",
            "fs/a/b/memory.max": "max\n",
            "fs/a/b/memory.current": f"{GIB}\n",
            "fs/a/b/c/memory.max": f"{4 * GIB}\n",
            "fs/a/b/c/memory.current": f"{GIB}\n",
            "self": "0::/a/b/c\n",
        },
    )
    assert cgroups(tmp_path / "fs", tmp_path / "self") == [(4 * GIB, GIB), (8 * GIB, 2 * GIB)]


def test_cgroup_v1_and_a_container_that_does_not_see_its_own_path(tmp_path: Path) -> None:
    tree(
        tmp_path,
        {
            "fs/memory/memory.limit_in_bytes": f"{2 * GIB}\n",
            "fs/memory/memory.usage_in_bytes": f"{GIB}\n",
            "fs/memory/memory.stat": f"inactive_file 1\ntotal_inactive_file {GIB // 2}\n",
            "self": "9:name=systemd:/\n5:cpu,cpuacct:/docker/1\n4:memory:/docker/1\n0::/\n",
        },
    )
    assert cgroups(tmp_path / "fs", tmp_path / "self") == [(2 * GIB, GIB // 2)]
    (tmp_path / "fs/memory/memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert cgroups(tmp_path / "fs", tmp_path / "self") == []
    assert cgroups(tmp_path / "fs", tmp_path / "nothing") == []


def test_this_machine() -> None:
    gauge = ResidentMemory()
    assert 100 * MIB < gauge.held() <= gauge.room()
    assert gauge.held() < gauge.total <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_more_than_the_bound_is_an_error_and_the_bound_ends() -> None:
    gauge = ResidentMemory()
    limit = gauge.held() + 100 * MIB
    with gauge.bounded(limit):
        torch.zeros(50 * MIB // 4).fill_(1.0)
        with pytest.raises(RuntimeError, match="can't allocate memory") as caught:
            torch.zeros(120 * MIB // 4)
    assert out_of_memory(caught.value)
    assert limit - 100 * MIB < gauge.peak() <= limit
    assert torch.zeros(300 * MIB // 4).numel()


def test_the_peak_is_since_the_bound_began() -> None:
    gauge = ResidentMemory()
    torch.ones(400 * MIB // 4)
    before = gauge.peak()
    with gauge.bounded(gauge.held() + 100 * MIB):
        pass
    assert gauge.peak() < before - 200 * MIB


@pytest.mark.parametrize(
    ("error", "is_memory"),
    [
        (torch.OutOfMemoryError("anything"), True),
        (torch.cuda.OutOfMemoryError("CUDA out of memory."), True),
        (MemoryError(), True),
        (OSError(12, "Cannot allocate memory"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("could not create a primitive"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("out of memory"), False),
        (KeyError("CUDA"), False),
        (OSError(2, "No such file"), False),
    ],
)
def test_what_is_about_memory(error: Exception, is_memory: bool) -> None:
    assert out_of_memory(error) is is_memory
