"""Looks up which addresses the configured host names stand for, again and again, so that replicas come and go by DNS.

Runs as one task of the lifespan; writes through `Upstreams.set_addresses`. A name that cannot be looked up keeps its addresses.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence

from services.gateway.paths import Service
from services.gateway.upstreams import Target, Upstreams
from shared.observability.logging import get_logger

log = get_logger(__name__)

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


async def resolve_name(host: str, port: int) -> Sequence[str]:
    """The addresses of `host`, sorted; IPv4 only if it has any, since a replica with both kinds would count twice.

    Raises:
        OSError: the name cannot be looked up.
    """
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = sorted({str(row[4][0]) for row in found})
    return [address for address in addresses if ":" not in address] or addresses


class Resolver:
    """Keeps the replicas of `upstreams` in step with DNS."""

    def __init__(self, upstreams: Upstreams, interval_s: float, resolve: Resolve = resolve_name) -> None:
        self._upstreams = upstreams
        self._interval_s = interval_s
        self._resolve = resolve

    def set_literals(self) -> None:
        """Enter the targets that are addresses already; called once, before the first request."""
        for service, target in self._targets():
            if _is_address(target.host):
                self._upstreams.set_addresses(service, target, [target.host])

    async def run(self) -> None:
        """Look all names up, once every interval, for ever."""
        names = [(service, target) for service, target in self._targets() if not _is_address(target.host)]
        while names:
            await asyncio.gather(*(self._update(service, target) for service, target in names))
            await asyncio.sleep(self._interval_s)

    async def _update(self, service: Service, target: Target) -> None:
        try:
            addresses = await self._resolve(target.host, target.port)
        except OSError as error:
            log.warning("lookup_failed", upstream=service, host=target.host, reason=str(error))
            return
        self._upstreams.set_addresses(service, target, addresses)

    def _targets(self) -> list[tuple[Service, Target]]:
        return [(service, target) for service, targets in self._upstreams.targets.items() for target in targets]


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
