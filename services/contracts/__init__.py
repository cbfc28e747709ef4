"""The vocabulary every part of Keyhole shares: job kinds, parameters, states, sources, error codes.

Only pydantic is imported here, so that the API, the workers, the database and the dashboard can all depend on it.
"""
