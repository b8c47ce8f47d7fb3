"""Log lines have two forms, and spans cost nothing where nobody listens."""

from __future__ import annotations

import logging
import subprocess
import sys

import orjson
import pytest

from floodmark import logs, traces


def test_a_text_line_is_the_time_and_the_text() -> None:
    lines: list[str] = []
    logs.event_logger("text", lines.append).info("flushed", text="dataset m: 3 rows", rows=3)
    time, _, text = lines[0].partition(" ")
    assert text == "dataset m: 3 rows"
    assert time.endswith("Z")


def test_a_json_line_has_time_event_level_and_all_details() -> None:
    lines: list[str] = []
    logs.event_logger("json", lines.append).warning("problem", text="sink a: no", subject="sink a", block={"after": 1})
    found = orjson.loads(lines[0])
    assert found.pop("at").endswith("Z")
    assert found == {
        "event": "problem",
        "level": "warning",
        "text": "sink a: no",
        "subject": "sink a",
        "block": {"after": 1},
    }


def test_lines_of_pythons_own_log_are_json_too() -> None:
    handler = logs.handler("json")
    record = logging.LogRecord("floodmark.hub", logging.WARNING, "", 0, "%s answered %d", ("chunks", 503), None)
    found = orjson.loads(handler.format(record))
    assert (found["event"], found["level"], found["logger"]) == ("chunks answered 503", "warning", "floodmark.hub")


def test_a_value_that_json_does_not_know_is_a_text() -> None:
    lines: list[str] = []
    logs.event_logger("json", lines.append).info("x", error=ValueError("no"))
    assert orjson.loads(lines[0])["error"] == "no"


def test_where_nobody_has_imported_opentelemetry_a_span_does_not_either() -> None:
    code = (
        "import sys, floodmark.traces as traces\n"
        "end = traces.start('x')\n"
        "with traces.span('flush', dataset='m') as attribute: attribute('rows', 3)\n"
        "end()\n"
        "print('opentelemetry' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_an_application_that_traces_sees_flush_export_compaction_and_their_errors(store, tmp_path) -> None:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    trace._set_tracer_provider(provider, log=False)
    store.add_dataset("m")
    store.add_sink("out", "blob", url=(tmp_path / "out").as_uri())
    store.capture("m", [{"n": 1}, {"n": 2}])
    store.flush("m")
    store.export("out")
    store.compact("m")
    found = {span.name: dict(span.attributes) for span in spans.get_finished_spans()}
    assert found["floodmark.flush"] == {"floodmark.dataset": "m", "floodmark.rows": 2}
    assert found["floodmark.export"]["floodmark.rows"] == 2
    assert found["floodmark.compact"] == {"floodmark.dataset": "m"}
    spans.clear()
    with pytest.raises(ValueError, match="broken"), traces.span("flush", dataset="m"):
        raise ValueError("broken")
    (failed,) = spans.get_finished_spans()
    assert not failed.status.is_ok
