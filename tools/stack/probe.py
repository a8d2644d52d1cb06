"""Looks at a service from outside: is its port free, does it say that it is ready.

Called by the launch and the supervisor. Goes straight to the address, whatever proxy the environment names.
"""

from __future__ import annotations

import errno
import http.client
import socket

from tools.stack.service import Service

_TIMEOUT_S = 1.0


def is_port_free(service: Service) -> bool:
    """Whether the service could listen on its port now.

    Raises:
        OSError: its host is not an address of this machine.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(service.host, service.port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the services do
        try:
            listener.bind(address)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise
    return True


def is_ready(service: Service) -> bool:
    """Whether `GET /ready` answers 200."""
    connection = http.client.HTTPConnection(service.local_host, service.port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", "/ready")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
