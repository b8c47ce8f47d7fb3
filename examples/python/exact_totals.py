"""Totals that are exactly right after any number of crashes: a projection in the store's own database.

The function's effect and the acknowledgement are one transaction.

    python examples/python/exact_totals.py /tmp/totals
"""

import sqlite3
import sys
from pathlib import Path

import pyarrow as pa
from sqlalchemy import text

import floodmark
from floodmark.delivery.sinks.projection import Delivery

MODULE = Path(__file__).stem  # also when it is run as a program
ADD = text(
    "INSERT INTO my_totals (city, total) VALUES (:city, :total) "
    "ON CONFLICT (city) DO UPDATE SET total = my_totals.total + excluded.total"
)


def add_up(batch: pa.Table, delivery: Delivery) -> None:
    for row in batch.to_pylist():
        delivery.connection.execute(ADD, {"city": row["city"], "total": row["total"]})


def main(directory: str) -> None:
    root = Path(directory)
    with floodmark.init(root / "shop") as store:
        store.add_dataset("orders", identity=["id"])
        with sqlite3.connect(root / "shop" / "control.db") as database:
            database.execute("CREATE TABLE my_totals (city TEXT PRIMARY KEY, total INTEGER)")
        store.add_sink("totals", "projection", function=f"{MODULE}:add_up", transactional=True)

        for batch in ([("Ghent", 40), ("Bruges", 12)], [("Ghent", 2)]):
            store.capture("orders", [{"id": f"{city}-{total}", "city": city, "total": total} for city, total in batch])
            store.flush("orders")
            store.export("totals")
            store.export("totals")  # nothing is new, and nothing is added twice
        with sqlite3.connect(root / "shop" / "control.db") as database:
            print(database.execute("SELECT * FROM my_totals ORDER BY city").fetchall())
            # → [('Bruges', 12), ('Ghent', 42)]


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main(sys.argv[1])
