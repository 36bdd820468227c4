"""A scrape of `/metrics`, as Prometheus reads it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import httpx
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from app.queue.message import class_of

UNFINISHED = """
    SELECT priority, CASE
        WHEN status = 'queued' AND sent_at IS NULL THEN 'waiting' WHEN status = 'queued' THEN 'sent'
        WHEN worker IS NOT NULL THEN 'running' WHEN yielded THEN 'yielded' ELSE 'released' END AS state, count(*)
    FROM responses WHERE finished_at IS NULL GROUP BY 1, 2
"""
"""What the gauges of unfinished responses must say."""


@dataclass(frozen=True)
class Scrape:
    """The metrics of one scrape, by name."""

    families: Mapping[str, Metric]

    @classmethod
    def of(cls, text: str) -> Scrape:
        return cls({family.name: family for family in text_string_to_metric_families(text)})

    @classmethod
    def of_all(cls, texts: Iterable[str]) -> Scrape:
        """The samples of several processes, each family once."""
        families: dict[str, Metric] = {}
        for text in texts:
            for family in text_string_to_metric_families(text):
                families.setdefault(family.name, Metric(family.name, "", family.type)).samples += family.samples
        return cls(families)

    def value(self, sample: str, **labels: str) -> float:
        """The sum of the samples of that name which have these labels."""
        return sum(
            each.value
            for family in self.families.values()
            for each in family.samples
            if each.name == sample and labels.items() <= each.labels.items()
        )

    @property
    def labels(self) -> dict[str, set[str]]:
        """The labels of each sample's name."""
        found: dict[str, set[str]] = {}
        for family in self.families.values():
            for each in family.samples:
                found.setdefault(each.name, set()).update(each.labels)
        return found


def scrape_of(registry: CollectorRegistry) -> Scrape:
    return Scrape.of(generate_latest(registry).decode())


async def scrape(port: int, token: str | None = None) -> Scrape:
    """Raises HTTPStatusError unless the answer is 200."""
    headers = {"authorization": f"Bearer {token}"} if token else {}
    answer = await asyncio.to_thread(httpx.get, f"http://127.0.0.1:{port}/metrics", headers=headers)
    answer.raise_for_status()
    return Scrape.of(answer.text)


def responses_by_state(rows: Iterable[tuple[int, str, int]]) -> dict[tuple[str, ...], int]:
    """The rows of UNFINISHED by tier, mode and state."""
    found: Counter[tuple[str, ...]] = Counter()
    for priority, state, count in rows:
        found[(*class_of(priority), state)] += count
    return dict(found)


def unfinished_responses(scrape: Scrape) -> dict[tuple[str, ...], int]:
    """The same as maintenance shows it."""
    family = scrape.families["longhaul_fleet_responses"]
    labels = ("tier", "mode", "state")
    return {tuple(each.labels[name] for name in labels): int(each.value) for each in family.samples if each.value}
