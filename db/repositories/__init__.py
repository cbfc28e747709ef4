"""Queries, one module per table. Functions take a connection, hold the SQL and never commit: the caller does."""
