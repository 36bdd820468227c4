"""Muon in float32: momentum, made orthogonal, for the weight matrices of the layers.

After Jordan et al., 2024 (kellerjordan.github.io/posts/muon). torch.optim.Muon works in bfloat16, which is
slow on most CPUs and learnt worse here; Adam alone needs about twice the steps.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

QUINTIC = (3.4445, -4.7750, 2.0315)
"""The coefficients of the published Newton-Schulz iteration."""


def orthogonal(matrix: torch.Tensor, rounds: int = 4) -> torch.Tensor:
    """About the nearest matrix whose singular values are all 1; of a stack of matrices, each for itself."""
    a, b, c = QUINTIC
    tall = matrix.shape[-2] > matrix.shape[-1]
    x = matrix.mT if tall else matrix
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(rounds):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x.mT if tall else x


class Muon:
    """Steps `matrices` along their orthogonalised Nesterov momentum."""

    def __init__(self, matrices: Iterable[torch.Tensor], momentum: float = 0.9) -> None:
        self._momentum = momentum
        self._state = [(matrix, torch.zeros_like(matrix)) for matrix in matrices]

    def step(self, rate: float) -> None:
        with torch.no_grad():
            for matrix, average in self._state:
                average.lerp_(matrix.grad, 1 - self._momentum)
                direction = orthogonal(matrix.grad.lerp(average, self._momentum))
                rows, columns = matrix.shape[-2:]
                matrix.add_(direction, alpha=-rate * max(1.0, rows / columns) ** 0.5)
