"""What people talk to: contracts, HTTP API, Python client, command line and the embedded stack."""
