"""The page of performance and the README's figures are what `make bench` recorded, and nothing else."""

from __future__ import annotations

from bench import left_alone
from bench.page import BEGIN, END, PAGE, README, SECTIONS, is_reached, readme_table, render, text_of
from bench.records import Record, records


def test_the_page_is_what_was_recorded():
    assert PAGE.read_text(encoding="utf-8") == render(records()), "run `make bench`"


def test_the_figures_of_the_readme_are_those_of_the_page():
    shown = README.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0]
    assert shown.strip() == readme_table(records()).strip(), "run `make bench`"


def test_what_is_said_of_a_store_that_was_left_alone_is_what_was_recorded():
    record = records()["watch"]
    said = left_alone.PAGE.read_text(encoding="utf-8").split(left_alone.BEGIN)[1].split(left_alone.END)[0]
    assert said.strip() == left_alone.text(record).strip(), "run `python -m bench watch --record`"
    assert left_alone.PLOT.read_text(encoding="utf-8") == left_alone.plot(left_alone.samples_of(record))
    assert record.scale == 1.0


def test_every_goal_that_is_missed_stands_at_the_end_of_the_page():
    kept = records()
    behind = PAGE.read_text(encoding="utf-8").split("## Where it is behind its goals")[1]
    missed = [row for rows in SECTIONS.values() for row in rows if is_reached(row, kept) is False]
    assert [row.work for row in missed if f"- {text_of(row, kept)}: " not in behind] == []


def test_a_figure_that_misses_its_goal_is_named_and_one_that_reaches_it_is_bold():
    def page_of(milliseconds: float) -> str:
        figures = {"ticks": {"1": {}, "2": {"stored": 2, "floodmark": {"no_new_ms": milliseconds}}}}
        figures["ticks"]["2"]["structured_streaming"] = {"no_new_ms": 100.0}
        return render({"delivery": Record("delivery", "2026-01-01", "abc", 1.0, 2, 8, "3.11", True, figures)})

    good, bad = page_of(50.0), page_of(51.0)
    assert "**50 ms**" in good
    assert "- deliver, nothing new, 2 stored: 0.51" in bad
    assert "**51 ms**" not in bad
