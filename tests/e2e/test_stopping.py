"""`longhaul up` is told to stop while a client waits."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.longhaul import Longhaul
from tests.support.services import open_folder

ANSWER = " ".join(["word"] * 1000)
"""2.5 seconds of the scripted engine, longer than its worker would wait."""


@pytest.mark.long
def test_the_foreground_answer_is_complete(scripted_models: Path) -> None:
    with open_folder() as folder, ThreadPoolExecutor(1) as threads:
        graces = {"LONGHAUL_SHUTDOWN_GRACE_SECONDS": "0", "LONGHAUL_API_GRACE_SECONDS": "1000"}
        installation = Longhaul(folder / "home", scripted_models, **graces)
        installation.start()
        with installation.client() as client:
            events = client.responses.create(model="scripted", input=f"/say {ANSWER}", stream=True)
            while next(events).type != "response.output_text.delta":
                pass
            rest = threads.submit(lambda: [*events])
            assert installation.stop() == 0
            final: Any = rest.result()[-1]
        assert (final.type, final.response.output_text) == ("response.completed", ANSWER)
