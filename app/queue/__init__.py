"""All that knows Celery's messages: the Celery app, its queues, and how a message gets into Redis."""
