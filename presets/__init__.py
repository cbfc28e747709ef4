"""Suites with a name: folders of TOML files, read by services/presets.py."""
