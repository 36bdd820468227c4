"""All that knows Celery's messages: the Celery app, priorities, and how a message gets into Redis."""
