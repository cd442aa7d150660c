"""Training scripts of the embedded models; not part of the installed package."""

import os
import time

#: Start of the run. Time limits include imports and reading the data.
START_TIME = time.monotonic()

# numpy and torch read these when they are imported, which happens after this line. The processes that prepare the data
# use one core each; more threads would slow them down.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"
