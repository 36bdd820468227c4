"""Prints the libraries that PyTorch's build for CUDA needs, one requirement a line.

On a machine without a GPU, pip installs that build unless it is offered the one for CPUs; and no list here has its
libraries. Triton is left out: it would break the import of vLLM's build for the CPU.
"""

from __future__ import annotations

import sys
from importlib.metadata import requires

from packaging.requirements import Requirement

LEFT_OUT = frozenset({"triton"})


def main() -> None:
    """Prints the requirements."""
    for requirement in map(Requirement, requires("torch") or ()):
        if requirement.name in LEFT_OUT or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        requirement.marker = None
        sys.stdout.write(str(requirement).replace(" ", "") + "\n")


if __name__ == "__main__":
    main()
