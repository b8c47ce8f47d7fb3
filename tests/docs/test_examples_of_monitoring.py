"""The dashboard for Grafana and the alert rules name only metrics and labels that there are."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "monitoring"
METRIC = re.compile(r"\bfloodmark_\w+")
ROW = re.compile(r"^\| ((?:`floodmark_\w+`(?:, )?)+) \|(.*?)\|", re.MULTILINE)


def reference() -> dict[str, set[str]]:
    """Every metric with its labels, as the reference has them; other tests hold that against the processes."""
    page = (ROOT / "docs/reference/http.md").read_text(encoding="utf-8")
    return {
        name: set(re.findall(r"`(\w+)`", labels))
        for names, labels in ROW.findall(page)
        for name in re.findall(r"`(\w+)`", names)
    }


def base(name: str) -> str:
    known = reference()
    return next((part for part in (name, re.sub(r"_(bucket|count|sum)$", "", name)) if part in known), name)


def expressions() -> Iterator[tuple[str, str, str]]:
    board = json.loads((EXAMPLES / "grafana-dashboard.json").read_text(encoding="utf-8"))
    for panel in board["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"], target["legendFormat"]
    for rule in rules():
        yield rule["alert"], rule["expr"], " ".join(rule["annotations"].values())


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((EXAMPLES / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def test_every_metric_that_the_examples_name_exists():
    unknown = [
        f"{title}: {name}"
        for title, expression, _ in expressions()
        for name in METRIC.findall(expression)
        if base(name) not in reference()
    ]
    assert unknown == []
    assert len({name for _, expression, _ in expressions() for name in METRIC.findall(expression)}) > 20


def test_every_label_that_the_examples_show_is_a_label_of_their_metric():
    everywhere = {"instance", "job", "le"}
    wrong = []
    for title, expression, shown in expressions():
        labels = set().union(*(reference()[base(name)] for name in METRIC.findall(expression)), everywhere)
        named = set(re.findall(r"\{\{ ?(?:\$labels\.)?(\w+) ?\}\}", shown))
        for group in re.findall(r"\bby \(([^)]*)\)", expression):
            named |= set(re.split(r",\s*", group))
        wrong += [f"{title}: {label}" for label in sorted(named - labels)]
    assert wrong == []


def test_a_dashboard_has_no_panel_over_another():
    board = json.loads((EXAMPLES / "grafana-dashboard.json").read_text(encoding="utf-8"))
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_an_alert_says_what_is_wrong_and_what_to_do(rule: dict[str, Any]):
    assert rule["labels"]["severity"] in {"page", "ticket"}
    assert set(rule["annotations"]) == {"summary", "description"}
    for brackets in ("()", "{}", "[]"):
        assert rule["expr"].count(brackets[0]) == rule["expr"].count(brackets[1])
