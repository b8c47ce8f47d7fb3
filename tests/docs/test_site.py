"""The documents become a site: built strictly, complete, and readable on a machine without a network."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOADED = re.compile(
    r"""<(?:script|img|iframe|source|video)\b[^>]*\bsrc="([^"]+)"|<link\b(?=[^>]*rel="(?:stylesheet|preload|icon)")"""
    r"""[^>]*\bhref="([^"]+)"|url\(["']?([^"')]+)|@import\s+["']([^"']+)"""
)
"""What a browser loads by itself: scripts, pictures, styles, fonts. Links are not among them."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(place)],
        cwd=ROOT,
        env={
            **os.environ,
            "NO_MKDOCS_2_WARNING": "1",
            "http_proxy": "http://127.0.0.1:9",
            "https_proxy": "http://127.0.0.1:9",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return place


def test_every_page_is_on_the_site(site: Path):
    sources = {page.relative_to(ROOT / "docs").with_suffix("") for page in (ROOT / "docs").rglob("*.md")}
    assert {page.relative_to(site).with_suffix("") for page in site.rglob("*.html")} >= sources


def test_no_page_loads_anything_from_elsewhere(site: Path):
    found = []
    for file in [*site.rglob("*.html"), *site.rglob("*.css")]:
        for match in LOADED.finditer(file.read_text(encoding="utf-8")):
            target = next(filter(None, match.groups()))
            if re.match(r"(?:https?:)?//", target):
                found.append(f"{file.relative_to(site)}: {target}")
    assert found == []
    assert not list(site.rglob("*mermaid*")), "diagrams are SVG files: their script would come from elsewhere"


def test_a_page_that_is_not_in_the_navigation_fails_the_build(tmp_path: Path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# Home\n")
    (tmp_path / "docs" / "lost.md").write_text("# Lost\n")
    settings = (ROOT / "mkdocs.yml").read_text().partition("nav:\n  - index.md\n")
    (tmp_path / "mkdocs.yml").write_text(f"{settings[0]}{settings[1]}")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "lost.md" in done.stderr
