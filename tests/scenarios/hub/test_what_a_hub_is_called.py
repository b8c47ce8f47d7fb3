"""The Host of a request, and what is told when a hub starts: a name, a certificate, or a warning."""

from __future__ import annotations

import datetime as dt

import pytest
from answers import problem

from floodmark.errors import InvalidSetting
from floodmark.hub import serve as serving
from floodmark.hub.settings import HubSettings
from sending import spooled


@pytest.mark.parametrize("name", ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "", "localhost.evil"])
def test_a_page_that_makes_its_own_name_point_here_is_refused(store, start_hub, name):
    """DNS rebinding: a browser on this machine would carry any page's requests to a hub on loopback."""
    store.add_dataset("events")
    hub = start_hub(store, hosts=serving.hosts_of("127.0.0.1", ()))
    for response in (hub.capture(b'[{"id":1}]', Host=name), hub.get("/metrics", Host=name), hub.get("/", Host=name)):
        problem(response, 421, "WrongHost")
    assert spooled(store) == []


@pytest.mark.parametrize("name", ["localhost", "LOCALHOST:8080", "127.0.0.1:9", "[::1]:8080", "hub.internal"])
def test_a_hub_on_loopback_answers_to_its_own_names_and_those_that_are_allowed(store, start_hub, name):
    store.add_dataset("events")
    hub = start_hub(store, hosts=serving.hosts_of("localhost", ["Hub.internal"]))
    assert hub.capture(b'[{"id":1}]', Host=name).status_code == 200


def test_a_hub_that_others_reach_answers_to_any_name_unless_some_are_given():
    assert serving.hosts_of("0.0.0.0", ()) is None
    assert serving.hosts_of("0.0.0.0", ("hub.example",)) == {"hub.example"}


@pytest.fixture
def started(store, monkeypatch):
    """What `serve` says, and what it would run."""

    def start(**options):
        said, ran = [], []
        monkeypatch.setattr(serving, "run_workers", lambda *_, **given: (given["serving"](), ran.append(given)))
        monkeypatch.setattr(serving, "check_exposure", lambda *_: None)
        serving.serve(
            store.path,
            **{"host": "0.0.0.0", "port": 0, "workers": 1, "settings": HubSettings(), **options},
            signals=None,
            listening=said.append,
            stopped_at_once=None,
            warn=said.append,
        )
        return said, ran[0]

    return start


def test_listening_to_the_network_without_tls_is_warned_about_loudly(started):
    said, _ = started()
    assert said[0].startswith("WARNING: The hub listens on 0.0.0.0 without TLS.")
    assert said[1].startswith("http://0.0.0.0:")
    assert len(started(host="127.0.0.1")[0]) == 1


def test_a_hub_with_a_certificate_speaks_tls(started, tmp_path):
    tls = serving.Tls(*certificate(tmp_path))
    said, ran = started(tls=tls)
    assert [line.partition(":")[0] for line in said] == ["https"]
    assert ran["tls"] == tls


def test_a_certificate_that_cannot_be_used_is_told_before_the_hub_starts(started, tmp_path):
    (tmp_path / "empty.pem").write_text("")
    for tls in (
        serving.Tls(tmp_path / "empty.pem", tmp_path / "empty.pem"),
        serving.Tls(tmp_path / "no", tmp_path / "no"),
    ):
        with pytest.raises(InvalidSetting, match="cannot be used") as refused:
            started(tls=tls)
        assert "--tls-cert" in refused.value.hint


def certificate(directory):
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (directory / "hub.pem").write_bytes(made.public_bytes(pem))
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (directory / "hub.key").write_bytes(private)
    return directory / "hub.pem", directory / "hub.key"
