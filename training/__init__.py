"""Training of the small models that travel with Vitrail; not part of the installed package."""

import os
import time

#: When the run began, so that a limit on its minutes also counts the imports and the reading of data.
STARTED = time.monotonic()

# Read by numpy and torch when they are imported, which is after this: the workers that render and decode pictures
# use one core each, and threads on top would only get in their way.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"
