"""`floodmark move` on its own; tests of moving a store show what it does."""

from __future__ import annotations

from scenarios.cli.conftest import Cli


def test_nothing_to_move_and_a_place_where_everything_is_already_are_told(cli: Cli) -> None:
    assert cli("init").code == 0
    nothing = cli("move")
    assert (nothing.code, "Nothing to move" in nothing.err) == (2, True)
    for options in (["--lake-type", "embedded"], ["--segments", "directory"]):
        already = cli("move", *options)
        assert (already.code, "there already" in already.err) == (1, True)
