"""`python -m rheoscope` is the command too, where its own name is not on the path."""

from rheoscope.commands.app import main

if __name__ == "__main__":
    main()
