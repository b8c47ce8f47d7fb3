"""Post rows to a hub with the standard library alone: each batch has a key, so it can be repeated until it is answered.

floodmark -s central hub &
python examples/python/post_to_hub.py http://127.0.0.1:8080 orders orders.jsonl
"""

import hashlib
import itertools
import json
import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterable
from pathlib import Path

BATCH_ROWS = 500
ATTEMPTS_MAX = 8


def main(hub: str, dataset: str, file: str) -> None:
    stored = 0
    with Path(file).open(encoding="utf-8") as lines:
        for batch in batches(lines):
            stored += post(f"{hub}/v1/datasets/{dataset}/capture", batch)["rows"]
    print(stored, "rows are durable at the hub")


def batches(lines: Iterable[str]) -> Iterable[bytes]:
    rows = (json.loads(line) for line in lines if line.strip())
    while batch := list(itertools.islice(rows, BATCH_ROWS)):
        yield json.dumps(batch).encode()


def post(url: str, body: bytes) -> dict[str, int]:
    headers = {
        "Content-Type": "application/json",
        # The same rows have the same key, also after this program was started again: the hub stores them once.
        "Idempotency-Key": hashlib.sha256(body).hexdigest(),
    }
    if token := os.environ.get("HUB_TOKEN"):
        headers["Authorization"] = f"Bearer {token}"
    for attempt in range(ATTEMPTS_MAX):
        try:
            with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=30) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            if error.code not in (408, 425, 429) and error.code < 500:
                raise SystemExit(f"The hub refuses this: {error.code} {error.read().decode()}") from error
            time.sleep(float(error.headers.get("Retry-After") or 2**attempt))
        except OSError:  # no connection, or none that lasted: whether the rows arrived is unknown, and does not matter
            time.sleep(2**attempt)
    raise SystemExit("The hub does not answer. Nothing is lost: run this again.")


if __name__ == "__main__":
    main(*sys.argv[1:4])
