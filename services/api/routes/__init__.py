"""Routes of the API, one module per thing they serve."""
