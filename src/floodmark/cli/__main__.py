"""`python -m floodmark.cli`: the same program, by the interpreter of one's choice."""

from floodmark.cli.entry import main

if __name__ == "__main__":
    main()
