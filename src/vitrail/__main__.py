"""Run the command line with ``python -m vitrail``."""

from vitrail.cli.app import main

main()
