"""The worker process: Celery takes a message, an engine generates, the journal commits."""
