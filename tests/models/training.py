"""What the training of every tiny model shares: its optimizer, and how its learning rate goes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tests.models.demo.muon import Muon

WARM_UP = 20


def learning_rate(progress: float, step: int) -> float:
    """The share of the full rate: warm-up, a plateau, then a linear decrease."""
    return min(1.0, (step + 1) / WARM_UP) * max(0.02, min(1.0, 1.6 * (1 - progress)))


def split_weights(model: Any) -> tuple[list[Any], list[Any]]:
    """The matrices of the layers, and all other weights."""
    named = list(model.named_parameters())
    matrices = [weight for name, weight in named if weight.ndim == 2 and "layers." in name]
    return matrices, [weight for name, weight in named if weight.ndim != 2 or "layers." not in name]


class Optimizer:
    """Muon for `matrices`, Adam for `others`: the weights of `model`."""

    def __init__(
        self,
        model: Any,
        matrices: Sequence[Any],
        others: Sequence[Any],
        *,
        muon_rate: float,
        adam_rate: float,
        weight_decay: float = 0.01,
    ) -> None:
        self._model = model
        self._muon_rate, self._adam_rate = muon_rate, adam_rate
        self._muon = Muon(matrices)
        self._adam = torch.optim.AdamW(others, lr=adam_rate, betas=(0.9, 0.95), weight_decay=weight_decay)

    def step(self, loss: Any, rate: float) -> float:
        """One update at `rate` times the full learning rates; returns the loss."""
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._muon.step(self._muon_rate * rate)
        for group in self._adam.param_groups:
            group["lr"] = self._adam_rate * rate
        self._adam.step()
        self._model.zero_grad(set_to_none=True)
        return float(loss.detach())
