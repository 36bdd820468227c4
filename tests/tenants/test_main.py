"""What the trial refuses to do."""

from __future__ import annotations

import pytest

from tests.tenants import __main__ as program

pytestmark = pytest.mark.long


def test_without_an_address_nothing_is_sent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.setattr("sys.argv", ["tests.tenants"])
    monkeypatch.setattr(program, "trial", None)
    with pytest.raises(SystemExit):
        program.main()
    assert "OPENAI_BASE_URL is not set" in capsys.readouterr().err
