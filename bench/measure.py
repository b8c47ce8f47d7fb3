"""Measuring: wall time and CPU seconds of this process and its JVM together, medians, ratios in one run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import psutil


@dataclass(frozen=True)
class Cost:
    wall_seconds: float
    cpu_seconds: float


def cpu_seconds() -> float:
    """CPU seconds used so far by this process and everything it started."""
    me = psutil.Process()
    total = sum(me.cpu_times()[:2])
    for child in me.children(recursive=True):
        try:
            total += sum(child.cpu_times()[:2])
        except psutil.NoSuchProcess:
            continue
    return total


def measured(work: Callable[[], object]) -> Cost:
    cpu, start = cpu_seconds(), time.perf_counter()
    work()
    return Cost(time.perf_counter() - start, cpu_seconds() - cpu)


def median(costs: list[Cost]) -> Cost:
    return Cost(
        statistics.median(cost.wall_seconds for cost in costs), statistics.median(cost.cpu_seconds for cost in costs)
    )


def jvm_resident_bytes() -> int:
    """What the JVM holds in memory now."""
    for child in psutil.Process().children(recursive=True):
        if "java" in child.name():
            return int(child.memory_info().rss)
    return 0
