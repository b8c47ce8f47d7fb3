"""`python -m floodmark.cli`: the same program, with a chosen interpreter."""

from floodmark.cli.entry import main

if __name__ == "__main__":
    main()
