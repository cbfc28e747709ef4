"""Parameters, tables and metrics of the probes, one file per kind."""
