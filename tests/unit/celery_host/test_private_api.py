"""What our code uses of Celery, kombu and redis-py beyond their documentation: a new version must still have it."""

from __future__ import annotations

import inspect

import pytest
from celery.events import EventDispatcher
from kombu.transport import redis as kombu_redis

from workers.celery_host.fetch import BatchChannel, PlacesQoS


@pytest.mark.parametrize("name", ["_in_poll", "_brpop_sent_at"])
def test_kombu_still_reads_what_fetch_notes(name: str) -> None:
    """Nothing else would notice: kombu ends a wait that Redis does not answer by these."""
    assert f"self.{name} = " in inspect.getsource(kombu_redis.Channel._brpop_start)


def test_kombu_still_asks_a_channel_whether_it_returns_what_was_not_acknowledged() -> None:
    assert not BatchChannel.do_restore
    assert "self.channel.do_restore" in inspect.getsource(PlacesQoS.restore_unacked_once)


@pytest.mark.parametrize("name", ["_group_buffer", "buffer_limit", "on_send_buffered", "_outbound_buffer"])
def test_celerys_dispatcher_still_has_what_the_event_buffer_sets(name: str) -> None:
    assert f"self.{name}" in inspect.getsource(EventDispatcher.__init__)
    assert f"self.{name}" in inspect.getsource(EventDispatcher)
