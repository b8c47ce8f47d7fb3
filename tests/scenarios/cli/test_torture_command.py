"""`floodmark torture`: what it says, and the exit codes. The run itself is tested with real processes elsewhere."""

from __future__ import annotations

from dataclasses import replace

import pytest

from floodmark.testing.oracle import Finding
from floodmark.torture.chaos_run import Trial
from floodmark.torture.members import Kill
from floodmark.torture.verdict import Compared, Exercised, Verdict

KILLS = (Kill(1.0, "daemon", "alone", "a commit"), Kill(2.0, "writer", "at random", "between two captures"))
PROVEN = Verdict(
    seed=7,
    seconds=61.0,
    drained=True,
    stuck="",
    destinations=(Compared("archive", 500, (), "every object"),),
    exercised=Exercised(KILLS, 4, 510, 500, 12, 6, 9, 8, 300, 40, 0, 1),
    left_out=("own: it would run your function.",),
)
LOST = replace(
    PROVEN, destinations=(Compared("archive", 499, (Finding("missing", "archive", "w1-1"),), "every object"),)
)


@pytest.fixture
def tortured(cli, monkeypatch: pytest.MonkeyPatch):
    assert cli("init").code == 0

    def call(verdict: Verdict, *options: str):
        monkeypatch.setattr(Trial, "run", lambda _self: verdict)
        return cli("torture", *options)

    return call


def test_a_run_in_which_every_row_arrived_says_what_was_tried(tortured) -> None:
    done = tortured(PROVEN)
    assert done.code == 0
    assert "2 kills. Each of 500 acknowledged rows arrived at every destination exactly once" in done.out
    assert "between two captures" in done.out
    assert "own: it would run your function." in done.out


def test_a_row_that_is_missing_is_named_and_ends_with_3(tortured) -> None:
    done = tortured(LOST)
    assert done.code == 3
    assert "WRONG  archive: row w1-1 is missing" in done.out
    assert "--seed 7" in done.out


def test_rows_that_did_not_get_through_end_with_3_and_the_reason(tortured) -> None:
    done = tortured(replace(PROVEN, drained=False, stuck="The hub does not answer."))
    assert done.code == 3
    assert "Not all rows were delivered. The hub does not answer." in done.out


def test_a_run_in_which_nothing_happened_ends_with_1(tortured) -> None:
    done = tortured(replace(PROVEN, unexercised=("no daemon was killed",)))
    assert done.code == 1
    assert "nothing is proven: no daemon was killed" in done.out


def test_programs_get_all_of_it(tortured) -> None:
    done = tortured(LOST, "--json")
    assert done.code == 3
    assert (done.json["sound"], done.json["proven"], done.json["killed"]) == (False, False, {"daemon": 1, "writer": 1})
    assert done.json["destinations"][0]["findings"][0]["kind"] == "missing"
    assert done.json["exercised"]["rows_captured_again"] == 12


def test_a_sink_that_is_not_there_is_an_error(cli) -> None:
    cli("init")
    done = cli("torture", "--sink", "nowhere")
    assert done.code == 1
    assert "There is no sink 'nowhere'" in done.err
