"""`python -m vramkit.cli`: the same as the `vramkit` command."""

import sys

from vramkit.cli import main

sys.exit(main())
