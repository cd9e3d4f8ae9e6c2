"""`python -m bu_torch`: the same as the command `bu-torch`."""

import os
import sys

# Python puts the current folder first on the path. A file there must not stand in for a package: it may lie beside
# checkpoints that were downloaded.
if not sys.flags.safe_path and sys.path and sys.path[0] in ("", os.getcwd()):  # noqa: PTH109
    del sys.path[0]

from bu_torch.cli import main

sys.exit(main())
