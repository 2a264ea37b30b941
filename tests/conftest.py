"""One thread a process: two test workers with two threads each on two cores fight for them, and take several times as long."""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported, and for every process that a test starts
