"""`python -m tensorpack`."""

import sys

from tensorpack._cli import main

if __name__ == "__main__":
    sys.exit(main())
