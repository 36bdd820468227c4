"""Kubernetes' service links are no settings."""

from __future__ import annotations

import pytest

from config.service_links import drop_service_links
from config.settings import Settings, load_settings, unknown_variables, variable_of


def links_of(service: str, port: int = 8000) -> dict[str, str]:
    """What Kubernetes sets for a Service with one named port."""
    name, address = service.upper().replace("-", "_"), "10.0.0.11"
    return {
        f"{name}_SERVICE_HOST": address,
        f"{name}_SERVICE_PORT": str(port),
        f"{name}_SERVICE_PORT_HTTP": str(port),
        f"{name}_PORT": f"tcp://{address}:{port}",
        f"{name}_PORT_{port}_TCP": f"tcp://{address}:{port}",
        f"{name}_PORT_{port}_TCP_PROTO": "tcp",
        f"{name}_PORT_{port}_TCP_PORT": str(port),
        f"{name}_PORT_{port}_TCP_ADDR": address,
    }


def test_service_links_are_no_settings_and_no_typing_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    for service in ("longhaul", "longhaul-api", "longhaul-flower", "longhaul-python", "flower", "vllm", "vllm-qwen3"):
        environ = links_of(service)
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        drop_service_links(environ)
        assert environ == {}
    settings = load_settings()
    assert (settings.port, settings.flower_port) == (8000, 5555)
    monkeypatch.setenv("LONGHAUL_PORT", "9000")
    assert load_settings().port == 9000


def test_no_setting_looks_like_a_service_link_and_other_services_keep_theirs() -> None:
    settings = {variable_of(field): "8000" for field in Settings.model_fields}
    environ = {**settings, **links_of("postgres"), "LONGHAUL_PROT": "1"}
    before = dict(environ)
    drop_service_links(environ)
    assert environ == before
    assert unknown_variables(environ) == ["LONGHAUL_PROT"]
