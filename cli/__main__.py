"""What `streamdump` and `python -m cli` start."""

import sys


def main() -> int:
    """Run `streamdump` with the arguments of this process; the exit code.

    Who interrupts it before it is even loaded sees no traceback either.
    """
    try:
        from cli.app import main as run
    except KeyboardInterrupt:
        return 130
    return run()


if __name__ == "__main__":
    sys.exit(main())
