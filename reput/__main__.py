"""``python -m reput``: the command line."""

from reput.cli import main

if __name__ == "__main__":
    main()
