"""``python -m queuehint`` is the command `queuehint`."""

from queuehint.cli import main

if __name__ == "__main__":
    main()
