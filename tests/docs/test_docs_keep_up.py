"""The documents say what the program does: each test here fails when one of them lags behind."""

from __future__ import annotations

import dataclasses
import inspect
import re
import runpy
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from tests.evidence import mutations

import floodmark
import floodmark.errors
from floodmark import config
from floodmark.cli.group import app
from floodmark.lake.conditions import FUNCTIONS
from floodmark.store import Store

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def tracked() -> list[Path]:
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()]


def pages() -> list[Path]:
    return [*ROOT.glob("*.md"), *DOCS.rglob("*.md")]


# ── command line ─────────────────────────────────────────────────────────────────────────────────────────────────────


def commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    if path:
        yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from commands(inner, (*path, name))


def section(page: str, heading: str) -> str:
    """What stands under a heading, up to the next one of any level."""
    found = re.search(rf"^#+ `?{re.escape(heading)}`?\s*$(.*?)(?=^#+ |\Z)", page, re.MULTILINE | re.DOTALL)
    return found[1] if found else ""


def test_every_command_and_option_stands_in_the_reference():
    page = text("docs/reference/cli.md")
    missing = []
    for path, command in commands(app):
        own = section(page, " ".join(("floodmark", *path)))
        if not own:
            missing.append(" ".join(path))
            continue
        options = [o for p in command.params if isinstance(p, click.Option) for o in p.opts if o.startswith("--")]
        missing += [f"{' '.join(path)} {option}" for option in options if f"`{option}" not in own]
    assert missing == []


def test_the_command_reference_is_the_help_of_the_commands():
    generated = runpy.run_path(str(ROOT / "scripts" / "cli_reference.py"))["page"]
    page = text("docs/reference/cli.md")
    assert page == generated(page), "Run `python scripts/cli_reference.py`."


# ── settings and errors ──────────────────────────────────────────────────────────────────────────────────────────────


def test_every_setting_stands_in_the_reference_with_its_default():
    page = text("docs/reference/configuration.md")
    missing = []
    for name, kind in config.SECTIONS.items():
        for field in dataclasses.fields(kind):
            default = getattr(kind(), field.name)
            shown = "{}" if isinstance(default, dict) else config.toml_value(default)
            row = f"| `{name}.{field.name}` | `{shown}` |"
            if row not in page:
                missing.append(row)
    assert missing == []


def test_every_function_that_a_filter_may_use_stands_in_the_reference_and_no_other():
    page = section(text("docs/reference/filters.md"), "Functions")
    rows = re.findall(r"^\| ([a-z ]+) \| (`.*) \|$", page, re.MULTILINE)
    told = {about: " ".join(re.findall(r"`([a-z0-9_]+)`", names)) for about, names in rows}
    assert told == FUNCTIONS


def test_every_environment_variable_stands_in_the_reference():
    used = {
        name
        for path in (ROOT / "src").rglob("*.py")
        for name in re.findall(r"\bFLOODMARK_[A-Z]+\b", path.read_text(encoding="utf-8"))
    }
    page = text("docs/reference/configuration.md")
    assert [name for name in sorted(used) if f"`{name}`" not in page] == []


def test_every_error_stands_in_the_reference_under_its_family():
    page = text("docs/reference/errors.md")
    families = (floodmark.Retryable, floodmark.OutcomeUnknown, floodmark.Permanent, floodmark.Corrupt)
    assert [family.__name__ for family in families if not section(page, family.__name__)] == []
    for name, error in inspect.getmembers(floodmark.errors, inspect.isclass):
        if not issubclass(error, floodmark.FloodmarkError) or error in (floodmark.FloodmarkError, *families):
            continue
        family = next(item for item in families if issubclass(error, item))
        assert f"`{name}`" in section(page, family.__name__), f"{name} under {family.__name__}"


ROUTE = re.compile(r"""\b(?:[Rr]oute|page)\(\s*"(/[^"]*)\"""")


def test_every_route_stands_in_the_reference():
    page = text("docs/reference/http.md")
    served = {
        re.sub(r"\{.*?\}", "{}", path)
        for room in ("hub", "daemon", "dashboard")
        for file in (ROOT / "src/floodmark" / room).rglob("*.py")
        for path in ROUTE.findall(file.read_text(encoding="utf-8"))
    }
    assert {"/", "/metrics", "/v1/ledger/{}"} <= served, "the routes are written otherwise now: correct the pattern"
    documented = {re.sub(r"\{.*?\}", "{}", path) for path in re.findall(r"`(?:GET |POST )?(/[^`\s]*)`", page)}
    assert sorted(served - documented) == []


def test_the_python_reference_has_every_public_name():
    page = text("docs/reference/python.md")
    methods = [name for name in vars(Store) if not name.startswith("_")]
    missing = [name for name in [*floodmark.__all__, *methods] if re.search(rf"`[^`\n]*\b{name}\b", page) is None]
    assert missing == []


# ── invariants ───────────────────────────────────────────────────────────────────────────────────────────────────────

ID = re.compile(r"\b[BDHILU][1-9][0-9]*\b")


def ids_in(paths: Iterator[Path] | list[Path]) -> set[str]:
    return {id for path in paths for id in ID.findall(path.read_text(encoding="utf-8"))}


def listed() -> set[str]:
    return set(re.findall(r"^### ([BDHILU][0-9]+)\b", text("docs/explanation/invariants.md"), re.MULTILINE))


def cited_in_source() -> set[str]:
    return ids_in([path for path in (ROOT / "src/floodmark").rglob("*.py") if "eventlog" not in path.parts])


def test_every_invariant_that_the_code_cites_is_explained_and_the_other_way_round():
    assert listed() == cited_in_source()


def test_every_invariant_is_cited_by_a_test_and_broken_on_purpose_by_the_model_and_the_simulation():
    cited = mutations.everything()
    assert {item.id for item in cited} == listed()
    assert {item.id: item.missing for item in cited if item.missing} == {}


def test_the_page_of_mutations_has_every_invariant_and_every_seeded_bug():
    page = text("docs/explanation/mutations.md")
    for item in mutations.everything():
        assert f"| {item.id} | {item.title} |" in page, "run `make evidence`"
        assert [name for name in (*item.model, *item.simulation) if name not in page] == [], "run `make evidence`"


# ── what the pages promise ───────────────────────────────────────────────────────────────────────────────────────────


def test_every_test_that_a_page_names_exists():
    missing = []
    for page in pages():
        for file, name in re.findall(r"`(tests/[\w/.]+\.py)(?:::(\w+))?`", page.read_text(encoding="utf-8")):
            path = ROOT / file
            if not path.is_file() or (name and f"def {name}(" not in path.read_text(encoding="utf-8")):
                missing.append(f"{page.name}: {file}::{name}")
    assert missing == []


def test_every_link_between_pages_leads_somewhere():
    broken = []
    for page in pages():
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if "://" not in target and not (page.parent / target).exists():
                broken.append(f"{page.relative_to(ROOT)} → {target}")
    assert broken == []


def test_the_readme_is_short_and_names_the_two_commands():
    readme = text("README.md")
    assert len(readme.splitlines()) < 150
    assert "make demo" in readme
    assert "make test" in readme


def python_blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", text(page), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", [str(page.relative_to(ROOT)) for page in pages()])
def test_python_in_the_pages_is_python(page: str):
    for block in python_blocks(page):
        compile(block, page, "exec")


# ── the project speaks of itself only ────────────────────────────────────────────────────────────────────────────────

# Put together from halves, so that this file does not contain what it forbids.
FORBIDDEN = [
    r"\.\./" + "shared",
    "/work/" + "shared",
    "FAILURES" + r"\.md",
    "PROTOCOL" + r"\.md",
    "DESIGN" + r"\.md",
    r"\b[Ii]ssue" + r" #?[0-9]",
    r"\bTO" + r"DO\b",
    r"\bFIX" + r"ME\b",
]


def test_nothing_in_the_tree_speaks_of_its_making_or_is_left_undone():
    pattern = re.compile("|".join(FORBIDDEN))
    found = []
    for path in tracked():
        try:
            content = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [f"{path.relative_to(ROOT)}: {match[0]}" for match in pattern.finditer(content)]
    assert found == []
