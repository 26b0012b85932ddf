"""The benchmark suite behind `spanalloc bench`: which allocators, which workloads, how they are run, what is made of it.

The figures of the papers are packages of the source tree's papers/, which is on the path from here on."""

import os
import sys

sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
