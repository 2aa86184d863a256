"""A process that measures untrained models for a card: it reads a task and their numbers, and writes their measurements."""

import os
import pickle
import sys


def main() -> None:
    """Read a task and then the numbers of untrained models from standard input, and write their measurements."""
    output = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints may not come between the measurements
    task = pickle.load(sys.stdin.buffer)
    for line in sys.stdin.buffer:
        pickle.dump(task.measure(int(line)), output)
        output.flush()


if __name__ == "__main__":
    main()
