"""A writer process: captures rows until it is stopped, and logs the acknowledgements.

    python -m floodmark.torture.writer STORE DATASET NAME BOOK SEED (again | leave) [finish]

Rows with an unknown outcome are captured `again` if the dataset has an identity. Otherwise they are left: a second copy
would be another row. With `finish` it does only that, and exits.
"""

from __future__ import annotations

import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from floodmark.errors import Corrupt, FloodmarkError, Permanent, Retryable
from floodmark.store import Store, open_store
from floodmark.testing.oracle import proof
from floodmark.torture.journal import Journal, Rows

SITES = ("north", "south")
BATCH_ROWS_MAX = 12
PAUSE_SECONDS_MAX = 0.4
RETRY_SECONDS = 0.25
OPEN_SECONDS_MAX = 60.0
WORDS = ("plain", "Größe", "π ≈ 3", '"quoted"', "tab\there", "😀", "", "line\nbreak", "null", "0.1")


class Writer:
    """One life of a writer."""

    def __init__(self, store: Store, dataset: str, name: str, journal: Journal, *, chance: random.Random) -> None:
        self._store = store
        self._dataset = dataset
        self._name = name
        self._journal = journal
        self._chance = chance
        self._told: set[str] = set()
        self.stop = threading.Event()

    def settle(self) -> None:
        """Capture rows with an unknown outcome again."""
        for number, rows in self._journal.entries.unanswered.items():
            self._capture(number, rows, again=True, keep_trying=True)

    def run(self, *, keep_trying: bool) -> None:
        number = max(self._journal.entries.attempts, default=0)
        while not self.stop.is_set():
            number += 1
            self._capture(number, self._rows(number), again=False, keep_trying=keep_trying)
            self.stop.wait(self._chance.uniform(0, PAUSE_SECONDS_MAX))

    def _capture(self, number: int, rows: Rows, *, again: bool, keep_trying: bool) -> None:
        while not self.stop.is_set():
            self._journal.attempt(number, rows, again=again)
            try:
                receipt = self._store.capture(self._dataset, rows)
            except (Permanent, Corrupt):
                raise
            except (FloodmarkError, OSError) as error:
                self._tell(str(error))
                self.stop.wait(RETRY_SECONDS)
                if not keep_trying:
                    return  # perhaps it is stored; a second copy would be another row
                again = True
                continue
            if receipt.rows != len(rows):
                raise SystemExit(f"{receipt.quarantined} rows that fit went to quarantine")
            self._journal.acknowledge(number)
            return

    def _rows(self, number: int) -> Rows:
        count = self._chance.randint(1, BATCH_ROWS_MAX)
        return [self._row(f"{self._name}-{number:06d}-{index}") for index in range(count)]

    def _row(self, id: str) -> dict[str, Any]:
        site = self._chance.choice(SITES)
        text = " ".join(self._chance.choices(WORDS, k=self._chance.randint(0, 6)))
        return {"id": id, "site": site, "text": text, "proof": proof(id, site, text), "size": len(text)}

    def _tell(self, problem: str) -> None:
        if problem not in self._told:
            self._told.add(problem)
            sys.stderr.write(f"{problem}\n")


def _opened(root: str) -> Store:
    """The store, as soon as it can be opened."""
    deadline = time.monotonic() + OPEN_SECONDS_MAX
    while True:
        try:
            return open_store(root)
        except (Retryable, OSError):
            if time.monotonic() > deadline:
                raise
            time.sleep(RETRY_SECONDS)


def main(arguments: list[str]) -> None:
    root, dataset, name, path, seed, manner, *rest = arguments
    journal = Journal(Path(path))
    with _opened(root) as store:
        # Every life has other rows, and the same seed has the same lives.
        chance = random.Random(f"{seed} {name} {len(journal.entries.attempts)}")  # noqa: S311 - not for secrets
        writer = Writer(store, dataset, name, journal, chance=chance)
        signal.signal(signal.SIGTERM, lambda _number, _frame: writer.stop.set())
        if manner == "again":
            writer.settle()
        if "finish" not in rest:
            writer.run(keep_trying=manner == "again")
    journal.close()


if __name__ == "__main__":
    main(sys.argv[1:])
