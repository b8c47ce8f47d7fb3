"""A consumer that dies in the middle and still applies every row once.

The effect and the cursor are in one transaction of SQLite: after a crash both are there, or neither.

    python examples/python/follow.py /tmp/follow
"""

import sqlite3
import sys
from pathlib import Path

import floodmark
from floodmark.store import Store


def main(directory: str) -> None:
    root = Path(directory)
    bills = sqlite3.connect(root / "bills.db")
    bills.execute("CREATE TABLE bills (order_id TEXT, total INTEGER)")
    bills.execute("CREATE TABLE position (cursor TEXT)")

    with floodmark.init(root / "shop") as store:
        store.add_dataset("orders", identity=["order_id"], event_time="placed_at")
        for number in range(3):
            order = {"order_id": f"a-{number}", "placed_at": f"2026-03-0{number + 1}T08:00:00Z", "total": 10}
            store.capture("orders", [order, order])  # sent twice
            store.flush("orders")

        try:
            consume(store, bills, die_at="a-1")
        except RuntimeError as error:
            print(error)  # → died before a-1 was billed
        consume(store, bills)
        consume(store, bills)  # nothing is new
        print(bills.execute("SELECT count(*), sum(total) FROM bills").fetchone())  # → (3, 30)

        # Placed before all others, and captured last: a consumer that remembers times would miss it.
        store.capture("orders", [{"order_id": "late", "placed_at": "2026-01-01T08:00:00Z", "total": 5}])
        store.flush("orders")
        consume(store, bills)
        print(bills.execute("SELECT count(*), sum(total) FROM bills").fetchone())  # → (4, 35)


def consume(store: Store, bills: sqlite3.Connection, die_at: str | None = None) -> None:
    found = bills.execute("SELECT cursor FROM position").fetchone()
    for batch in store.read_since("orders", found and found[0]):
        for row, cursor in batch.pairs():
            if row["order_id"] == die_at:
                raise RuntimeError(f"died before {die_at} was billed")
            with bills:
                bills.execute("INSERT INTO bills VALUES (?, ?)", [row["order_id"], row["total"]])
                bills.execute("DELETE FROM position")
                bills.execute("INSERT INTO position VALUES (?)", [str(cursor)])


if __name__ == "__main__":
    main(sys.argv[1])
