"""What a process has measured so far: the samples of each row, and the rows that are absent, as JSON."""

import json
import os
import statistics
from pathlib import Path
from typing import Any

import machine


class Sampled:
    """One row with its samples.

    Args:
        job, name, file, role: see `row` of conftest.py.
        rounds: how many samples are wanted, over all turns.
        iterations: calls in each.

    Attributes:
        turns: the seconds of one call, one per round, of each turn in which there were rounds.
        warm: one call before each turn is not timed.
        info: what else is known.
    """

    def __init__(self, job: str, name: str, file: str, role: str, rounds: int, iterations: int) -> None:
        self.job, self.name, self.file, self.role = job, name, file, role
        self.rounds, self.iterations, self.warm = rounds, iterations, False
        self.turns: list[list[float]] = []
        self.info: dict[str, Any] = {}

    def summary(self) -> dict[str, Any]:
        """Times in seconds at the full size of the work: median, quartiles, least; of a limit also at start and end."""
        share = self.info["share"]
        times = sorted(second / share for turn in self.turns for second in turn)
        low, high = times[0], times[-1]
        if len(times) > 3:
            low, _, high = statistics.quantiles(times, n=4, method="inclusive")
        found = {"job": self.job, "row": self.name, "file": self.file, "role": self.role, "rounds": len(times)}
        found.update(median=statistics.median(times), q1=low, q3=high, min=times[0])
        if self.role == "limit" and len(self.turns) > 1:
            start, end = statistics.median(self.turns[0]), statistics.median(self.turns[-1])
            found.update(start=start / share, end=end / share)
        return found | {key: value for key, value in self.info.items() if value not in (None, "", {})}


class Collected:
    """All rows of a process.

    Attributes:
        rows: by job and name.
        abouts: bench file -> its docstring.
        running: the pytest node that is being run.
        modules: how many had been imported when objects were last frozen for the garbage collector.
    """

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], Sampled] = {}
        self.abouts: dict[str, str] = {}
        self.running = ""
        self.modules = 0
        self._absent: dict[str, dict[str, str]] = {}
        self._places: dict[str, tuple[str, str]] = {}
        self._nodes: dict[tuple[str, str], str] = {}

    def add(self, sampled: Sampled) -> None:
        """Take a row."""
        self.rows[sampled.job, sampled.name] = sampled

    def place(self, node: str, job: str, name: str) -> None:
        """Note which row a pytest node measures."""
        node = without_turn(node)
        self._places[node], self._nodes[job, name] = (job, name), node

    def absent_row(self, node: str, file: str, reason: str) -> None:
        """Note why a row is not there; the first reason counts."""
        node = without_turn(node)
        job, name = self._places.get(node, ("", node.rpartition("::")[2]))
        self.rows.pop((job, name), None)
        self._absent.setdefault(node, {"job": job, "row": name, "file": file, "reason": reason})

    def summary(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        rows = [row.summary() | {"node": self._nodes[key]} for key, row in self.rows.items() if row.turns]
        return {
            "format": 1,
            "header": machine.describe(),
            "abouts": self.abouts,
            "rows": rows,
            "absent": list(self._absent.values()),
            "running": without_turn(self.running).rpartition("::")[2],
        }

    def write(self, path: Path) -> None:
        """Write it, whole or not at all."""
        unfinished = path.with_name(path.name + ".unfinished")
        unfinished.write_text(json.dumps(self.summary()))
        os.replace(unfinished, path)


def without_turn(node: str) -> str:
    """The node's name without the turn that it is in."""
    stem, bracket, params = node.partition("[")
    kept = [part for part in params.removesuffix("]").split("-") if not part.startswith("turn")]
    return stem + (f"[{'-'.join(kept)}]" if bracket and kept else "")
