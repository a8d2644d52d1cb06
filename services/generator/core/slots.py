"""The one number that a slot is when there is none, for tensors and arrays; imports nothing, so that kernels may use it too."""

NO_ADAPTER = -1
"""Slot of a row that uses the base model only."""
