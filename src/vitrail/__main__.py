"""``python -m vitrail`` is the command line."""

from vitrail.cli import main

main()
