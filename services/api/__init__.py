"""The HTTP API: routes, authentication, problems. ``app.create_app()`` makes it; nothing here imports torch."""
