"""Chance in the tests comes from one seed: fixed in an ordinary run, fresh where that is asked for, and always told."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import seeds


def tried() -> list[int]:
    seen: list[int] = []

    @given(st.integers())
    def draw(value: int) -> None:
        seen.append(value)

    draw()
    return seen


def test_a_property_is_tried_with_the_same_inputs_each_time():
    assert tried() == tried()


def told(**environment: str) -> str:
    """The seed of a process with this environment."""
    kept = {name: value for name, value in os.environ.items() if name != "TEST_SEED"}
    done = subprocess.run(
        [sys.executable, "-c", "import seeds; print(seeds.header())"],
        cwd=Path(__file__).parents[1],
        env={**kept, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    found = re.match(r"seed of random tests: (\d+)", done.stdout)
    assert found is not None, done.stdout
    return found[1]


def test_the_header_of_a_run_names_its_seed_which_is_fixed_unless_another_is_asked_for(pytestconfig: pytest.Config):
    fixed = told()
    assert told() == fixed
    assert told(TEST_SEED="17") == "17"
    assert told(TEST_SEED="fresh") not in {fixed, told(TEST_SEED="fresh")}
    assert seeds.header() in pytestconfig.hook.pytest_report_header(config=pytestconfig, start_path=Path.cwd())
