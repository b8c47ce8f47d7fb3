"""A provider is a plan and a reading function behind one name, and fails as one thing."""

from __future__ import annotations

import re
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import floodmark
from floodmark import providers
from floodmark.providers import Item, Provider, Unit


@pytest.fixture(autouse=True)
def _nothing_stays_registered(monkeypatch):
    monkeypatch.setattr(providers, "registered", {})


def plain(unit: Unit):
    yield {"read": unit.id}


class NotAFunction:
    pass


nonsense = NotAFunction()


def test_a_decorated_function_is_found_by_its_name():
    @floodmark.provider("tickets", plan=lambda location: [Unit(f"{location}/1", "the first", 12)])
    def tickets(unit):
        yield Item({"ticket": 1}, f"{unit.id}:1")

    found = providers.find("tickets")
    assert found is tickets
    assert found.plan("here") == [Unit("here/1", "the first", 12)]
    assert list(found.read(Unit("here/1"))) == [Item({"ticket": 1}, "here/1:1")]


def test_without_a_plan_the_location_is_the_one_unit():
    assert providers.find(f"{__name__}:plain").plan("somewhere") == [Unit("somewhere", "everything at somewhere")]
    assert [unit.id for unit in providers.find(f"{__name__}:plain").plan()] == [f"{__name__}:plain"]


def test_a_bare_row_gets_its_position_as_its_provenance():
    assert list(providers.find(f"{__name__}:plain").read(Unit("u"))) == [Item({"read": "u"}, "u#0")]


def test_an_item_has_either_a_row_or_a_problem():
    with pytest.raises(ValueError, match="either a row or a problem"):
        Item(None, "here")
    with pytest.raises(ValueError, match="either a row or a problem"):
        Item({}, "here", "and a problem")


def test_an_unknown_name_says_which_there_are():
    floodmark.provider("tickets")(plain)
    with pytest.raises(floodmark.UnknownProvider, match=r"The known providers are .*tickets"):
        providers.find("nobody")


@pytest.mark.parametrize("name", ["", " tickets", "a:b", None])
def test_a_name_that_could_not_be_asked_for_is_refused(name):
    with pytest.raises(floodmark.InvalidName, match="is not a valid provider name"):
        floodmark.provider(name)


@pytest.mark.parametrize("path", ["no.such.module:f", f"{__name__}:absent", f"{__name__}:nonsense"])
def test_a_provider_that_does_not_load_is_one_clear_failure(path):
    with pytest.raises(floodmark.ProviderFailed):
        providers.find(path)


def test_an_installed_package_brings_providers_and_a_broken_one_harms_no_other(monkeypatch):
    points = [
        EntryPoint("broken", "no.such.module:f", providers.GROUP),
        EntryPoint("installed", f"{__name__}:plain", providers.GROUP),
    ]
    monkeypatch.setattr(providers, "entry_points", lambda group: points)
    assert {"broken", "installed"} <= set(providers.known())
    assert list(providers.find("installed").read(Unit("u"))) == [Item({"read": "u"}, "u#0")]
    with pytest.raises(floodmark.ProviderFailed, match="cannot be loaded"):
        providers.find("broken")


def test_what_was_read_before_a_failure_is_there_and_the_failure_names_the_unit():
    def stops(unit):
        yield {"n": 1}
        raise KeyError("gone")

    read = Provider("stops", stops).read(Unit("u7"))
    assert next(read) == Item({"n": 1}, "u7#0")
    with pytest.raises(floodmark.ProviderFailed, match="'stops' stopped while reading u7: KeyError"):
        next(read)


def test_a_plan_that_fails_or_repeats_itself_is_a_failure_of_the_provider():
    def fails(location):
        raise OSError("no such place")

    with pytest.raises(floodmark.ProviderFailed, match="no such place"):
        Provider("lost", plain, fails).plan("x")
    with pytest.raises(floodmark.ProviderFailed, match="two units with the id 'a'"):
        Provider("twice", plain, lambda location: [Unit("a"), Unit("a")]).plan("x")


def test_errors_of_our_own_families_pass_as_they_are():
    def full(unit):
        raise floodmark.SpoolFull("full")
        yield

    with pytest.raises(floodmark.SpoolFull):
        list(Provider("full", full).read(Unit("u")))


@pytest.mark.parametrize("name", sorted(providers.SHIPPED))
def test_the_reference_has_every_column_of_the_providers_that_are_shipped(name):
    page = (Path(__file__).parents[3] / "docs/reference/providers.md").read_text(encoding="utf-8")
    own = page.split(f"## {name}\n")[1].split("\n## ")[0]
    listed = re.findall(r"^\| `(\w+)` \| ([\w ]+) \|", own, re.MULTILINE)
    assert dict(listed) == dict(providers.find(name).declaration.schema)
