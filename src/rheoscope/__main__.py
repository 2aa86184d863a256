"""`python -m rheoscope`: the command line without the `rheoscope` script on the path."""

from rheoscope.commands.app import main

if __name__ == "__main__":
    main()
