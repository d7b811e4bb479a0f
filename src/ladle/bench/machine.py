"""What a figure was measured on: processor, memory, kernel, versions. No host names, no paths."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("numpy", "torch", "ladle")


def machine(packages: tuple[str, ...] = PACKAGES) -> dict[str, Any]:
    """cpu, cores this process may use, memory_gib, kernel, python, and the versions of those packages that are installed."""
    return {
        "cpu": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30),
        "kernel": f"{platform.system()} {re.match(r'[0-9.]*', platform.release())[0]}",  # type: ignore[index]
        "python": platform.python_version(),
        "packages": {name: version for name in packages if (version := installed(name)) is not None},
    }


def processor() -> str:
    """The processor's own name for itself."""
    try:
        names = re.findall(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        names = []
    return names[0].strip() if names else platform.machine()


def installed(package: str) -> str | None:
    """Its version, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def line(facts: Mapping[str, Any]) -> str:
    """The same in one line."""
    versions = ", ".join(f"{name} {version}" for name, version in facts["packages"].items())
    hardware = f"{facts['cpu']}, {facts['cores']} cores, {facts['memory_gib']} GiB, {facts['kernel']}"
    return f"{hardware}, Python {facts['python']}; {versions}"


def slug(facts: Mapping[str, Any]) -> str:
    """A short name for files: xeon-2core-24gib."""
    words = re.findall(r"[a-z0-9]+", re.sub(r"\((r|tm)\)|processor|cpu|@.*", " ", str(facts["cpu"]).lower()))
    name = next((word for word in words if word not in {"intel", "amd", "gen"}), "cpu")
    return f"{name}-{facts['cores']}core-{facts['memory_gib']}gib"
