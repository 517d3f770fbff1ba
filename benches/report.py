"""What every bench prints: medians, a table, and a line that says on what it was measured."""

from __future__ import annotations

import json
import os
import platform
import random
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any


def machine_line(server: str = "") -> str:
    python = f"{platform.python_implementation()} {platform.python_version()}"
    parts = [_cpu_model(), f"{os.cpu_count()} cores", f"{platform.system()} {platform.release()}"]
    return ", ".join([*parts, python, *([server] if server else [])])


def versions(*distributions: str) -> str:
    return ", ".join(f"{name} {_version(name)}" for name in distributions)


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of the values lie, without interpolation."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def medians(rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One round of medians. What is no number (names, notes) is taken from the first round."""
    first = rounds[0]
    numbers = {key for key, value in first.items() if isinstance(value, int | float)}
    return {k: median(r[k] for r in rounds) if k in numbers else first[k] for k in first}


def bootstrap(values: Sequence[float], share: float = 0.9, draws: int = 2_000) -> tuple[float, ...]:
    """Bounds that hold the median of such values with the given confidence; same on each call."""
    rng = random.Random(1)
    drawn = sorted(median(rng.choices(values, k=len(values))) for _ in range(draws))
    edge = (1 - share) / 2
    return quantile(drawn, edge), quantile(drawn, 1 - edge)


def table(rows: Sequence[dict[str, Any]], columns: dict[str, str] | None = None) -> str:
    """Rows as a table in Markdown; `columns` picks and names keys."""
    names = columns or {key: key for key in rows[0]}
    cells = [list(names.values()), *([show(row.get(key)) for key in names] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(names))]
    cells.insert(1, ["-" * width for width in widths])
    return "\n".join(_line(line, widths) for line in cells)


def show(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def emit(as_json: bool, data: dict[str, Any], text: Callable[[], str]) -> None:
    print(json.dumps(data, indent=2) if as_json else text(), flush=True)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "| " + " | ".join(cell.rjust(w) for cell, w in zip(cells, widths, strict=True)) + " |"


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "not installed"
