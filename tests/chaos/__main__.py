"""Kill for a while: `python -m tests.chaos [--minutes M] [--seed S] [--under s3 disk …] [--keep] [--record]`.

Time is shared out between rounds, each on stores of its own: with the records in SQLite on a small disk, then with the
records in PostgreSQL. Behind them a process is killed at every fault point of flush and delivery at which none has died
yet, with either kind of records; a point that nothing reaches is a failure.
"""

from __future__ import annotations

import argparse
import math
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from floodmark.torture.members import Kill
from floodmark.torture.verdict import Verdict

sys.path.append(str(Path(__file__).parents[1]))  # as pytest has it: what the tests share lies there

from .servers import may_mount
from .stage import Stage
from .sweep import POINTS, Sweep

ROUND_MINUTES_MAX = 10.0
ROUNDS = (("s3", "disk"), ("s3", "postgres"))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="how long members are killed, in all rounds")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="what is tried")
    parser.add_argument(
        "--under", nargs="*", choices=["s3", "postgres", "disk"], help="one round; what goes away in it"
    )
    parser.add_argument("--keep", action="store_true", help="keep the stores and what every process said")
    parser.add_argument("--record", action="store_true", help="write the page of evidence")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(143))  # what it started does not end by itself
    rounds = [tuple(asked.under)] if asked.under is not None else _rounds(asked.minutes)
    began, verdicts = time.monotonic(), []
    for number, underneath in enumerate(rounds):
        verdict = one_round(asked.seed + number, asked.minutes / len(rounds), underneath, keep=asked.keep)
        verdicts.append(verdict)
        if not _good(verdict):
            return 1
    reached = Counter(
        ("postgres" if "postgres" in under else "sqlite", kill.where) for under, kill in _deaths(rounds, verdicts)
    )
    if asked.under is None:
        for records in ("sqlite", "postgres"):
            if not swept(records, reached, keep=asked.keep):
                return 1
    if asked.record:
        command = f"python -m tests.chaos --minutes {asked.minutes:g} --seed {asked.seed}"
        write_down(verdicts, reached, command, seconds=time.monotonic() - began)
    return 0


def _rounds(minutes: float) -> list[tuple[str, ...]]:
    count = max(len(ROUNDS), math.ceil(minutes / ROUND_MINUTES_MAX))
    return [ROUNDS[number % len(ROUNDS)] for number in range(count)]


def _deaths(rounds: list[tuple[str, ...]], verdicts: list[Verdict]) -> Iterator[tuple[tuple[str, ...], Kill]]:
    """Those who died at a fault point, with what lay under them."""
    for under, verdict in zip(rounds, verdicts, strict=True):
        yield from ((under, kill) for kill in verdict.exercised.kills if kill.how == "at a point")


def swept(records: str, reached: Counter[tuple[str, str]], *, keep: bool) -> bool:
    """Have a process die at every point of flush and delivery that none has died at, and count them."""
    wanted = [point for point in POINTS if not reached[records, point]]
    if not wanted:
        return True
    folder = Path(tempfile.mkdtemp(prefix=f"floodmark-sweep-{records}-"))
    print(f"{len(wanted)} fault points are left, with records in {records}; {folder}", flush=True)
    came = Sweep(folder, postgres=records == "postgres").run(wanted)
    for point, times in came.reached.items():
        reached[records, point] += times
    unreached = [point for point in wanted if not reached[records, point]]
    for text in [*map(str, came.findings), *(f"no process died at {point}" for point in unreached)]:
        print(text)
    good = not came.findings and not unreached
    if good and not keep:
        shutil.rmtree(folder)
    print(f"{'every fault point was reached' if good else 'NOT PROVEN'}, with records in {records}", flush=True)
    return good


def one_round(seed: int, minutes: float, underneath: tuple[str, ...], *, keep: bool) -> Verdict:
    folder = Path(tempfile.mkdtemp(prefix="floodmark-kills-"))
    problem = may_mount(folder) if "disk" in underneath else None
    if problem is not None:
        print(f"no small disk: {problem}")
        underneath = tuple(item for item in underneath if item != "disk")
    print(f"seed {seed}, {minutes:g} minutes, under it: {', '.join(underneath) or 'nothing'}; {folder}", flush=True)
    stage = Stage(folder, seed, minutes * 60, frozenset(underneath), tell=_tell)
    verdict = stage.run()
    show(verdict)
    if not keep and _good(verdict):
        shutil.rmtree(folder)
    return verdict


def _good(verdict: Verdict) -> bool:
    return verdict.proven and not verdict.astray


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def show(verdict: Verdict) -> None:
    done = verdict.exercised
    for place, count in done.places.items():
        print(f"{count:6,}  {place}")
    print(
        f"{len(done.kills)} kills ({done.killed}), {done.starts} starts; {done.rows_attempted:,} rows attempted,"
        f" {done.rows_acknowledged:,} acknowledged, {done.rows_captured_again:,} captured again,"
        f" {done.duplicates_dropped:,} duplicates dropped; {done.commits} commits, {done.ticks} ticks"
        f" ({done.rows_in_trouble:,} rows during the kills),"
        f" {done.chunks} chunks, {done.setting_changes} changed settings, {done.problems} problems told"
    )
    for item in verdict.destinations:
        print(f"{item.name}: {item.rows:,} rows, {len(item.findings)} findings")
    for text in [*map(str, verdict.findings[:50]), *verdict.astray, *verdict.unexercised, verdict.stuck]:
        if text:
            print(text)
    word = "nothing wrong" if _good(verdict) else "NOT PROVEN"
    print(f"{word}, {verdict.seconds:.0f} s, seed {verdict.seed}", flush=True)


def write_down(verdicts: list[Verdict], reached: Counter[tuple[str, str]], command: str, *, seconds: float) -> None:
    from tests.evidence import RECORDS, Listing, record

    RECORDS.mkdir(exist_ok=True)
    done = [verdict.exercised for verdict in verdicts]
    deaths = Counter((kill.kind, kill.how, kill.where) for item in done for kill in item.kills)
    record(
        "kills",
        command=command,
        seconds=seconds,
        facts={
            "kills survived": sum(len(item.kills) for item in done),
            "rounds": len(verdicts),
            "starts of processes": sum(item.starts for item in done),
            "rows acknowledged": sum(item.rows_acknowledged for item in done),
            "rows captured again after an unknown outcome": sum(item.rows_captured_again for item in done),
            "duplicates dropped": sum(item.duplicates_dropped for item in done),
            "rows delivered while processes were killed": sum(item.rows_in_trouble for item in done),
            "commits told": sum(item.commits for item in done),
            "deliveries told": sum(item.ticks for item in done),
            "problems reported by the daemon": sum(item.problems for item in done),
            "rows compared at destinations": sum(item.rows for verdict in verdicts for item in verdict.destinations),
            "rows missing, doubled, altered, invented or out of order": sum(len(one.findings) for one in verdicts),
            "fault points of flush and delivery": len(POINTS),
            "… at which a process died, with records in SQLite": sum(bool(reached["sqlite", it]) for it in POINTS),
            "… at which a process died, with records in PostgreSQL": sum(
                bool(reached["postgres", it]) for it in POINTS
            ),
        },
        listings=[
            Listing(
                "Who died where",
                ("process", "how", "roughly where", "times"),
                [(*death, count) for death, count in sorted(deaths.items())],
                about="At a point: killed on reaching a [fault point](../reference/configuration.md), else at random.",
            )
        ],
    )


if __name__ == "__main__":
    sys.exit(main())
