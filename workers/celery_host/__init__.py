"""All that adapts Celery's worker: the pool, the fetching of messages, shutdown and remote control."""
