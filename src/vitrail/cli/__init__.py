"""The command line: one file for each command; no other package imports it."""
