"""Errors that stop a service at its start; the entry points print them in one line and end with exit code 1."""


class StartError(Exception):
    """The service cannot start as it is configured."""


class ModelFolderError(StartError):
    """The model's folder, or a file in it, is missing, unreadable or not supported."""
