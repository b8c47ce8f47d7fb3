"""What a refusal looks like."""

from __future__ import annotations

from typing import Any

import httpx


def problem(response: httpx.Response, status: int, name: str) -> dict[str, Any]:
    """The problem in an answer, which is of that status and name, and says nothing about the hub's inside."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    content = response.json()
    assert (content["type"], content["title"], content["status"]) == (f"urn:floodmark:problem:{name}", name, status)
    assert content["detail"]
    for leak in ("Traceback", ".py", "/tmp", "/dev/shm", "sqlite", "fmk_"):
        assert leak not in response.text
    return content
