"""The place in a sink's settings: its url, its connection options and its credentials.

| url                       | further settings                                                              |
|---------------------------|-------------------------------------------------------------------------------|
| `file:///directory`       |                                                                               |
| `s3://bucket/prefix`      | region, endpoint; access_key_id, secret_access_key, session_token             |
| `gs://bucket/prefix`      | endpoint; service_account, bearer_token                                       |
| `az://container/prefix`   | account, endpoint; account_key, sas_token, bearer_token                       |

Other settings come from the provider's environment variables (`AWS_…`, `GOOGLE_…`, `AZURE_…`) or from the identity of
the machine that writes the objects.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from floodmark.delivery.credentials import Credential, check_credential, shown_url
from floodmark.delivery.sinks.objects import LocalObjects, ObjectPlace
from floodmark.delivery.sinks.remote import RemoteObjects
from floodmark.errors import InvalidSetting, Permanent

# Each of our settings, and its name in the client library.
_OPTIONS: dict[str, dict[str, str]] = {
    "file": {},
    "s3": {"region": "region", "endpoint": "endpoint"},
    "gs": {"endpoint": "base_url"},
    "az": {"endpoint": "endpoint", "account": "account_name"},
}
_CREDENTIALS: dict[str, dict[str, str]] = {
    "file": {},
    "s3": {
        "access_key_id": "access_key_id",
        "secret_access_key": "secret_access_key",
        "session_token": "session_token",
    },
    "gs": {"service_account": "service_account_key", "bearer_token": "bearer_token"},
    "az": {"account_key": "account_key", "sas_token": "sas_key", "bearer_token": "token"},
}

OPTIONS = tuple(dict.fromkeys(name for names in _OPTIONS.values() for name in names))
SECRET = frozenset(name for names in _CREDENTIALS.values() for name in names)

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,221}")
_URLS = "Use file:///absolute/path, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix."


def check_place(settings: dict[str, Any]) -> None:
    """`InvalidSetting` for an invalid place; its url is converted to its canonical form."""
    settings["url"] = _canonical(settings["url"])
    scheme = settings["url"].partition(":")[0]
    allowed = {**_OPTIONS[scheme], **_CREDENTIALS[scheme]}
    for name in (*OPTIONS, *sorted(SECRET)):
        value = settings[name]
        if value is None:
            continue
        if name not in allowed:
            others = ", ".join(allowed) or "none"
            raise InvalidSetting(f"{name} is not a setting of {scheme}:// places.", hint=f"Their settings: {others}.")
        if name == "service_account":
            _check_reference(name, value)
        elif name in SECRET:
            check_credential(name, value)
        else:
            _check_option(name, value)


def place_of(settings: Mapping[str, Any]) -> ObjectPlace:
    """The place, with its present credentials."""
    scheme, _, rest = settings["url"].partition("://")
    if scheme == "file":
        return LocalObjects(Path(unquote(rest)))
    bucket, _, prefix = rest.partition("/")
    options = {theirs: settings.get(ours) for ours, theirs in _OPTIONS[scheme].items()}
    sources = {theirs: (ours, settings.get(ours)) for ours, theirs in _CREDENTIALS[scheme].items()}
    return RemoteObjects(
        scheme,
        bucket,
        prefix,
        tuple((theirs, str(value)) for theirs, value in options.items() if value is not None),
        tuple((theirs, _secret(ours, source)) for theirs, (ours, source) in sources.items() if source is not None),
    )


def _canonical(url: Any) -> str:
    if not isinstance(url, str):
        raise InvalidSetting(f"The url is a {type(url).__name__}.", hint=_URLS)
    try:
        parts = urlsplit(url if unquote(url).isprintable() else "")
    except ValueError:
        parts = urlsplit("")
    if "@" in parts.netloc or parts.query or parts.fragment:
        # Not shown: it may contain a password or a signature.
        raise InvalidSetting(
            "The url of a sink must not contain credentials, a query or a fragment.",
            hint=f"{_URLS} Credentials are settings.",
        )
    if parts.scheme == "file" and not parts.netloc and parts.path.startswith("/"):
        return url
    if parts.scheme in _OPTIONS and parts.scheme != "file" and _BUCKET.fullmatch(parts.netloc):
        prefix = "/".join(part for part in parts.path.split("/") if part)
        if not {".", ".."} & set(prefix.split("/")):
            return f"{parts.scheme}://{parts.netloc}" + (f"/{prefix}" if prefix else "")
    raise InvalidSetting(f"The url {shown_url(url)} cannot be delivered to.", hint=_URLS)


def _check_option(name: str, value: Any) -> None:
    if not isinstance(value, str) or not value:
        raise InvalidSetting(f"{name} is {value!r}.", hint="It is a text.")
    if name == "endpoint":
        if "@" in value or "?" in value or "#" in value:  # anywhere in it: a password may contain a slash
            raise InvalidSetting(
                "The endpoint must not contain credentials, a query or a fragment.", hint="Credentials are settings."
            )
        try:
            parts = urlsplit(value)
            _ = parts.port  # an invalid port is detected only here
        except ValueError:
            parts = urlsplit("")
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise InvalidSetting(
                f"The endpoint {shown_url(value)} is not an address.", hint="Write https://host or http://host:port."
            )


# ── credentials ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _secret(name: str, source: str) -> str:
    return _account_key(source) if name == "service_account" else Credential(source).text()


def _check_reference(name: str, value: Any) -> None:
    if not isinstance(value, str) or not value.startswith(("env:", "file:", "{")):
        raise InvalidSetting(
            f"{name} is neither a reference nor a key.",
            hint="Write file:/path/of/key.json, env:NAME, or the key's JSON.",
        )
    if not value.startswith("{"):
        check_credential(name, value)


def _account_key(source: str) -> str:
    """A service account's key is a JSON document of many lines, not a word that a header could contain."""
    kind, _, rest = source.partition(":")
    try:
        text = source
        if kind == "env":
            text = os.environ[rest]
        elif kind == "file":
            text = Path(unquote(rest.removeprefix("//")) if rest.startswith("//") else rest).read_text(encoding="utf-8")
        if not isinstance(json.loads(text), dict):
            raise ValueError("not an object")  # noqa: TRY004 - one error for everything that is not a key
    except (KeyError, OSError, ValueError):
        shown = source if kind in {"env", "file"} else "in the settings"
        raise Permanent(
            f"The service account's key {shown} is missing or is not a JSON document.",
            hint="Put the downloaded key there; the next export reads it again.",
        ) from None
    return text
