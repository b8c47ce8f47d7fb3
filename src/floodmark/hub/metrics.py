"""The metrics of a scrape: counters that all workers share, and the store's present figures."""

from __future__ import annotations

import os

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from floodmark import metrics
from floodmark.metrics import StoreFigures

SHARED_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""Where workers store their counters, so that each can report for all; prometheus_client reads it at import."""
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Metrics:
    """One worker's counters."""

    def __init__(self, store: StoreFigures) -> None:
        self._registry = CollectorRegistry()
        self._store = store
        self.requests = Counter(
            "floodmark_hub_requests", "Requests answered.", ["route", "status"], registry=self._registry
        )
        self.rows = Counter("floodmark_hub_rows", "Rows stored.", ["route", "dataset"], registry=self._registry)
        self.bytes = Counter(
            "floodmark_hub_body_bytes", "Bytes of bodies received.", ["route"], registry=self._registry
        )
        self.seconds = Histogram(
            "floodmark_hub_request_seconds",
            "Seconds from a request's headers to its response.",
            ["route"],
            registry=self._registry,
            buckets=_SECONDS,
        )

    def text(self) -> bytes:
        """The response to a scrape."""
        registry = self._registry
        if os.environ.get(SHARED_VARIABLE):
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]  # the library has no types there
        return generate_latest(registry) + metrics.text_of(self._store)
