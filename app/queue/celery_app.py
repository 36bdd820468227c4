"""The Celery app: what every process that uses Celery agrees on."""

from __future__ import annotations

from typing import Any, Literal
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from celery import Celery

from app.queue.redis_client import IDLE_SECONDS, TCP_KEEPALIVE, TLS
from config.settings import Settings
from config.urls import REDIS_FILES


def make_celery(settings: Settings) -> Celery:
    """Makes the Celery app. Connects to nothing. Raises ConfigError if REDIS_URL is unset."""
    celery = Celery("longhaul", set_as_current=False)
    celery.conf.update(_delivery(settings), **_worker(settings), **_format())
    return celery


def _delivery(settings: Settings) -> dict[str, Any]:
    return {
        "broker_url": _kombu_url(settings.broker_url),
        # By default kombu verifies no certificate.
        "broker_use_ssl": _tls(settings.broker_url),
        "broker_transport_options": {
            "priority_steps": [0],  # a queue is one list
            # Redis may vanish without closing the connection. By default kombu waits forever.
            "socket_connect_timeout": 2.0,
            "socket_timeout": 5.0,
            "health_check_interval": IDLE_SECONDS,
            **TCP_KEEPALIVE,
            # A worker remembers its unacknowledged messages and returns them when it stops. Emulated acknowledgements
            # would cost two more Redis commands for each message, to keep one whose worker died before its claim:
            # maintenance sends that one again.
            "ack_emulation": False,
        },
        "broker_connection_timeout": 2.0,
        # Workers wait for Redis forever, at the start and later. By default they give up after 100 tries.
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        # A sender tries twice and reports the failure; maintenance sends the message again.
        "task_publish_retry": True,
        "task_publish_retry_policy": {
            "max_retries": 1,
            "interval_start": 0.0,
            "interval_step": 0.1,
            "interval_max": 0.1,
        },
        # Models name the queues that are used. A message without a queue would end up, visibly, in this one.
        "task_default_queue": "unrouted",
        # With late acknowledgement a message is delivered again at every broken connection and after
        # visibility_timeout, while its first copy still runs. The claim and its lease do that task.
        "task_acks_late": False,
        # Results are in the row of the response. Flower's states come from events.
        "result_backend": None,
        "task_ignore_result": True,
    }


def _worker(settings: Settings) -> dict[str, Any]:
    return {
        # How many messages a worker takes is decided by its places alone (workers/celery_host/fetch.py).
        "worker_enable_prefetch_count_reduction": False,
        # A short outage of Redis must not discard running responses. (The default changes in Celery 6.)
        "worker_cancel_long_running_tasks_on_connection_loss": False,
        "worker_send_task_events": True,  # Flower shows events
        "task_send_sent_event": True,  # this one shows queued responses
        "worker_enable_remote_control": True,  # for Flower's buttons and the API's cancel
        # How long running responses may go on when a worker stops: workers.celery_host reads it.
        "worker_soft_shutdown_timeout": settings.shutdown_grace_seconds,
        "worker_hijack_root_logger": False,
        "worker_redirect_stdouts": False,
    }


def _format() -> dict[str, Any]:
    # Only JSON: with pickle, anybody who can write to Redis could run code here.
    return {
        "task_serializer": "json",
        "event_serializer": "json",
        "result_serializer": "json",
        "accept_content": ["json"],
        "timezone": "UTC",
        "enable_utc": True,
    }


def _kombu_url(url: str) -> str:
    """kombu writes `unix://[user:password@]/path[?db=N]` in another way. What the URL says of TLS is in `_tls`."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    if parts.scheme == "unix":
        return f"redis+socket://{parts.netloc}{parts.path}?virtual_host={options.get('db', '0')}"
    path = f"/{options['db']}" if "db" in options else parts.path
    return urlunsplit((parts.scheme, parts.netloc, path, "", ""))


def _tls(url: str) -> dict[str, Any] | Literal[False]:
    parts = urlsplit(url)
    return {**TLS, **_files(parts.query)} if parts.scheme == "rediss" else False


def _files(query: str) -> dict[str, str]:
    return {name: value for name, value in parse_qsl(query) if name in REDIS_FILES}
