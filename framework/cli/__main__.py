"""``python -m framework.cli``: the ``workers`` command where it is not on the PATH."""

from workers_command import main

if __name__ == "__main__":
    main()
