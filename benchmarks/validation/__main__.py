"""`python -m benchmarks.validation`."""

import sys

from benchmarks.validation.validate import main

sys.exit(main())
