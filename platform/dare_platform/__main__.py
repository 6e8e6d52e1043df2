"""`python -m dare_platform` is the command `dare`."""

from dare_platform.cli import main

if __name__ == "__main__":
    main()
