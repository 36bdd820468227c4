"""A scrape of `/metrics`, as Prometheus reads it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import httpx
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families


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
