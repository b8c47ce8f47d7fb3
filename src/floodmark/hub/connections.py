"""How many connections a worker accepts: in total, and from one address.

An idle connection costs a descriptor. Without descriptors a worker can neither accept connections nor open files, and
logs every attempt. So it sends a refusal while it still can.
"""

from __future__ import annotations

import resource
from collections import Counter
from dataclasses import dataclass, field

DESCRIPTORS_KEPT = 256
"""For files, the control database and the worker's own sockets."""
ADDRESS_MAX = 512
"""Connections from one address. A proxy is one address too."""
REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/problem+json\r\nRetry-After: 5\r\n"
    b"Connection: close\r\nContent-Length: %d\r\n\r\n%s"
)
CONTENT = (
    b'{"type":"urn:floodmark:problem:Crowded","title":"Crowded","status":503,'
    b'"detail":"The hub has reached its limit of connections. Nothing was stored.",'
    b'"hint":"Send the same request again later, and close connections that are not used."}\n'
)


def connections_max() -> int:
    """The limit that the descriptors of this process allow."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 65_536 if soft == resource.RLIM_INFINITY else max(16, soft - DESCRIPTORS_KEPT)


@dataclass(slots=True)
class Connections:
    """The connections of one worker."""

    all_max: int
    address_max: int = ADDRESS_MAX
    _open: Counter[str] = field(default_factory=Counter)

    def admit(self, address: str) -> bool:
        """Count a connection; false, without counting it, if the limit is reached."""
        if self._open.total() >= self.all_max or self._open[address] >= self.address_max:
            return False
        self._open[address] += 1
        return True

    def leave(self, address: str) -> None:
        self._open[address] -= 1
        if self._open[address] <= 0:
            del self._open[address]


def refusal() -> bytes:
    """The response to a connection before it is closed."""
    return REFUSAL % (len(CONTENT), CONTENT)
