"""Run the command line with ``python -m vitrail``."""

from vitrail.cli.app import main

if __name__ == "__main__":
    main()
