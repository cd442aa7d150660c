"""``python -m vitrail`` is the command line."""

from vitrail.cli.app import main

main()
