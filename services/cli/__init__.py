"""The command ``keyhole``: data on stdout, progress and messages on stderr, exit codes of exit_codes.py."""
