"""An engine without a model: the prompt scripts the reply, and every fault on demand."""

from __future__ import annotations

from tests.support.scripted.engine import ScriptedEngine

__all__ = ["SCRIPTED", "ScriptedEngine", "models_of"]

SCRIPTED = "tests.support.scripted:ScriptedEngine"
"""Its name in a models file."""


def models_of(*names: str) -> str:
    """A models file of such models."""
    return "".join(f'[[models]]\nname = "{name}"\nengine = "{SCRIPTED}"\n' for name in names)
