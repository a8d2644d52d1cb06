"""The request id of whatever is being served right now; the one piece of ambient context in the project.

Set by `shared.http.request_context`, read by the logs and by outgoing calls. Must not carry anything that changes an answer.
"""

from contextvars import ContextVar

request_id_var: ContextVar[str | None] = ContextVar("request_id", default=None)
