"""`python -m cli` is `streamdump`."""

import sys

from cli.app import main

if __name__ == "__main__":
    sys.exit(main())
