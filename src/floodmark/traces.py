"""Spans for OpenTelemetry, where the process uses it. Where it does not, a span is nothing.

An application that has set up a tracer provider sees Floodmark's spans among its own. `floodmark run` and `floodmark
hub` set one up themselves if the extra `floodmark[otel]` is installed and `OTEL_EXPORTER_OTLP_ENDPOINT` (or the one for
traces) is set.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


@contextlib.contextmanager
def span(name: str, **attributes: str | int) -> Iterator[Callable[[str, str | int], None]]:
    """One span around a block, with a function that sets more attributes. An error that leaves the block is in it."""
    api = sys.modules.get("opentelemetry.trace")  # nobody has imported it: nobody listens
    if api is None:
        yield _nothing
        return
    named = {f"floodmark.{key}": value for key, value in attributes.items()}
    with api.get_tracer("floodmark").start_as_current_span(f"floodmark.{name}", attributes=named) as current:

        def set_attribute(key: str, value: str | int) -> None:
            current.set_attribute(f"floodmark.{key}", value)

        yield set_attribute


def _nothing(_key: str, _value: str | int) -> None:
    """Nobody listens."""


def start(service: str, **attributes: str) -> Callable[[], None]:
    """Send this process's spans to the collector that the environment names, if any; returns what ends that."""
    if not any(os.environ.get(name) for name in _ENDPOINTS) or find_spec("opentelemetry.sdk") is None:
        return _no_end
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    described: dict[str, Any] = {"service.name": service, **attributes}
    provider = TracerProvider(resource=Resource.create(described))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    return provider.shutdown


def _no_end() -> None:
    """Nothing was started."""
