"""What runs on the GPU: the Celery worker, its child processes, models, data, attention and probes."""
