"""Owns the one exception of this tool: something that the person who ran it can read and act upon.

Raised by every module of the package and turned into one line and exit status 1 by __main__.
It must not wrap programming mistakes: those keep their own type and their traceback.
"""


class PrepareError(Exception):
    """The models cannot be prepared, for a reason that the message says."""
