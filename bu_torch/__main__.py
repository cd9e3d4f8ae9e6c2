"""`python -m bu_torch`: the same as the command `bu-torch`."""

import sys

from bu_torch.cli import main

sys.exit(main())
