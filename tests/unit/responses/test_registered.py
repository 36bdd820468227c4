"""What workers say of their models, in what requests are checked by."""

from __future__ import annotations

from typing import Any, cast

import pytest

from app.responses.models import registered
from app.responses.models.registered import RegisteredModels
from app.store.queue.workers import RegisteredModel
from config.models import ServedModel


async def test_a_model_is_completed_once_between_two_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = iter((100, 200))

    async def found(_db: Any) -> dict[str, RegisteredModel]:
        return {"m": RegisteredModel(next(lengths), "chat", None, None, {}, None, {})}

    monkeypatch.setattr(registered.workers, "registered_models", found)
    monkeypatch.setattr(registered, "LOOK_SECONDS", 3600)
    models, model = RegisteredModels(cast(Any, None)), ServedModel("m", "", "model.m", "vllm")
    first = await models.resolved(model)
    assert first.context_length == 100 and await models.resolved(model) is first
    monkeypatch.setattr(registered, "LOOK_SECONDS", 0)
    assert (await models.resolved(model)).context_length == 200
