"""The queries in config/monitoring/, and what each asks for. No parser of PromQL: names, matchers and groupings."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from config.settings import CHECKOUT

FOLDER = CHECKOUT / "config" / "monitoring"
_METRIC = re.compile(r"\b((?:longhaul|vllm|process)[\w:]+)(?:\{([^}]*)\})?")
_GROUPED = re.compile(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)")
_LABEL = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")


@dataclass(frozen=True)
class Query:
    """The labels that a query matches of each metric, and those that it groups by."""

    metrics: Mapping[str, set[str]]
    grouped: set[str]

    @classmethod
    def of(cls, text: str) -> Query:
        metrics: dict[str, set[str]] = {}
        for name, matchers in _METRIC.findall(text):
            metrics.setdefault(name, set()).update(_LABEL.findall(matchers))
        grouped = {label.strip() for labels in _GROUPED.findall(text) for label in labels.split(",")}
        return cls(metrics, grouped - {""})


def alerts() -> list[dict[str, Any]]:
    """The alert rules, in their order."""
    groups = yaml.safe_load((FOLDER / "alerts.yaml").read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def board() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / "grafana.json").read_text(encoding="utf-8"))
    return found


def panels() -> list[dict[str, Any]]:
    """The board's panels that ask for something."""
    return [panel for panel in board()["panels"] if panel["type"] != "row"]


def queries() -> Iterator[str]:
    """Those of all alerts, of the board's marks and of its panels."""
    for each in (*alerts(), *board()["annotations"]["list"]):
        yield each["expr"]
    for panel in panels():
        for target in panel["targets"]:
            yield target["expr"]
