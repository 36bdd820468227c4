"""Longhaul's own version."""

from __future__ import annotations

from importlib.metadata import version

DISTRIBUTION = "longhaul-server"
"""The package's name: `longhaul` belongs to somebody else."""
VERSION = version(DISTRIBUTION)
