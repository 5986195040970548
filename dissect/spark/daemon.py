"""Starts the Python workers of Spark, each as a copy of this process, which has imported what tasks need.

A worker of PySpark's own daemon imports it by itself, which takes 0.65 s. Standard output is the connection to Java: nothing may print.
"""

from __future__ import annotations

import gc
import sys
from importlib.machinery import BuiltinImporter

import pyarrow as pa

from . import tasks  # noqa: F401

if __name__ == "__main__":
    from pyspark import daemon, worker  # noqa: F401

    # For its first array pyarrow imports pandas, in case that is one: a third of a second, and 40 MB
    finders, sys.meta_path = sys.meta_path, [BuiltinImporter]
    pa.array([None])
    sys.meta_path = finders
    # Collections of workers would look at all this, and copy it
    gc.collect()
    gc.freeze()
    daemon.manager()
