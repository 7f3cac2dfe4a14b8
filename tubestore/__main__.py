"""`python -m tubestore`: the same as the command `tubestore`."""

from tubestore.cli import main

if __name__ == "__main__":
    main()
