"""Which state of the project a benchmark measured; read by those that write rows of results."""

import subprocess


def current_commit() -> str:
    """The commit, with a mark where files differ from it; `unknown` outside a repository."""
    answer = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return answer.stdout.strip() or "unknown"
