"""`python -m attnbench`."""

from attnbench.cli import main

if __name__ == "__main__":
    main()
