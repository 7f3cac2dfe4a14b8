"""`python -m rocketcompat`."""

from rocketcompat.cli import main

if __name__ == "__main__":
    main()
