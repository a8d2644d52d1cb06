"""The generator service; `LLM` runs its engine in the caller's own process.

`LLM` is imported when it is asked for, since it loads torch, which the API process must not.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from services.generator.llm import LLM

__all__ = ["LLM"]


def __getattr__(name: str) -> Any:
    if name == "LLM":
        from services.generator.llm import LLM

        return LLM
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
