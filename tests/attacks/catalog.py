"""All attacks: one of each kind. `test_bounds.py` names the test of every bound."""

from __future__ import annotations

from tests.attacks import requests, tenants  # noqa: F401 - they add theirs
from tests.attacks.attack import ATTACKS

__all__ = ["ATTACKS"]
