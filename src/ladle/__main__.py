"""`python -m ladle` is `ladle`."""

from __future__ import annotations

import sys

from ladle.cli import main

sys.exit(main())
