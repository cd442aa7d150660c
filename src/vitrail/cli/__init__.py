"""Command line: one file per command. No other package imports it."""
