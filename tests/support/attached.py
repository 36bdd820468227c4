"""Files in messages, for tests: what is sent, and what the model is shown."""

from __future__ import annotations

from typing import Any

from app.store.database import Database
from tests.support.api import Api
from tests.support.logs import row_of
from workers.formats.chat.messages import messages_of

Json = dict[str, Any]


def said(part: Json) -> list[Json]:
    return [{"role": "user", "content": [{"type": "input_text", "text": "Read this."}, part]}]


async def shown(api: Api, db: Database, part: Json) -> str:
    """What the model is shown of a part."""
    row = await row_of(db, await api.background(input=said(part)))
    [message] = messages_of(row.request["input"])
    content = message["content"]
    assert isinstance(content, str)
    return content.removeprefix("Read this.")
