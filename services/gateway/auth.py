"""Which `Authorization` header goes to a service.

The client's token was made for the gateway if the gateway asks for one, else for the service behind it. Checking the client's
token is not done here but by `shared.http.gates`, with the keys that `GatewaySettings.bearer_keys` names.
"""

from services.gateway.paths import ADMIN_PATHS
from services.gateway.settings import GatewaySettings


class UpstreamAuth:
    """Chooses the token for each forwarded request."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._is_clients_for_us = settings.api_key is not None
        key = settings.upstream_api_key
        self.own = None if key is None else b"Bearer " + key.get_secret_value().encode()

    def authorization(self, path: str, given: bytes | None) -> bytes | None:
        """The header's value for a request to `path` whose client gave `given`.

        Admin calls carry the admin key, which is the same at the gateway and at the generator, so it is passed on.
        """
        if path in ADMIN_PATHS:
            return given
        if self.own is not None:
            return self.own
        return None if self._is_clients_for_us else given
