"""What the log has of refused keys: counts, with an end to the lines."""

from __future__ import annotations

import pytest

from app.access import refused_keys
from app.access.refused_keys import MALFORMED, MAX_PAIRS, NO_KEY, RefusedKeys, name_of
from app.access.secret import new_secret
from tests.support.waiting import until


async def test_each_key_and_address_has_one_line_a_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refused_keys, "MINUTE_SECONDS", 0.01)
    refused = RefusedKeys()
    for _ in range(3):
        refused.count("key_1", "192.0.2.1", 401)
    refused.count("key_1", "192.0.2.1", 403)
    refused.count("key_1", "2001:db8::1", 401)
    assert caplog.messages == []
    await until(lambda: len(caplog.messages) == 2)
    assert caplog.messages == [
        "refused within a minute: key_1 from 192.0.2.1, 3 x 401, 1 x 403",
        "refused within a minute: key_1 from 2001:db8::1, 1 x 401",
    ]
    caplog.clear()
    refused.count("key_1", "192.0.2.1", 401)
    await until(lambda: caplog.messages == ["refused within a minute: key_1 from 192.0.2.1, 1 x 401"])


async def test_the_lines_of_a_minute_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    refused = RefusedKeys()
    for number in range(MAX_PAIRS + 500):
        refused.count(f"key_{number:04}", "192.0.2.1", 401)
    refused.write()
    assert len(caplog.messages) == MAX_PAIRS + 1
    assert caplog.messages[-1] == "refused within a minute: other keys and addresses, 500 x 401"


async def test_a_line_has_neither_a_key_nor_what_a_proxy_made_up(caplog: pytest.LogCaptureFixture) -> None:
    refused, secret = RefusedKeys(), new_secret()
    refused.count(name_of(secret, None), "x\nforged", 401)
    refused.write()
    (line,) = caplog.messages
    assert "an unknown API key (SHA-256 " in line and "from an unknown address" in line
    assert "\n" not in line and secret not in line and secret[10:20] not in line
    assert (name_of(None, None), name_of("my password", None), name_of(secret, "key_1")) == (NO_KEY, MALFORMED, "key_1")
