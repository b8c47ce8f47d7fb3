"""Objects named by their range: exported twice, written once, and readable by everything that reads Parquet.

python examples/python/archive.py /tmp/archive
"""

import sys
from pathlib import Path

import pyarrow.dataset as ds

import floodmark


def main(directory: str) -> None:
    root = Path(directory)
    with floodmark.init(root / "river") as store:
        store.add_dataset("readings", identity=["gauge"], event_time="at", partition_by=["site"])
        store.add_sink("archive", "blob", url=(root / "archive").as_uri(), chunk_rows=2)
        store.capture(
            "readings",
            [
                {"site": site, "gauge": gauge, "at": "2026-03-02T08:00:00Z", "level": level}
                for site, gauge, level in [("north", "weir", 0.88), ("north", "lock", 1.2), ("south", "bridge", 1.42)]
            ],
        )
        store.flush("readings")
        print(store.export("archive").rows, "delivered, then", store.export("archive").rows)  # → 3 delivered, then 0
        print(store.audit("archive").sound)  # → True

    for path in sorted((root / "archive").rglob("*.parquet")):
        print(path.relative_to(root / "archive"))
        # → readings/site=north/0-3.parquet
        # → readings/site=south/0-3.parquet
    print(ds.dataset(root / "archive" / "readings").count_rows(), "rows")  # → 3 rows


if __name__ == "__main__":
    main(sys.argv[1])
