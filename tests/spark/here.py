"""What Spark does for a run, done right here: the same tasks, in the same order each time."""

from __future__ import annotations

import pickle
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from streamdump.spark.pipeline import PipelineRun, PipelineSettings, Watch


class Here:
    """A cluster of nobody else. `scratch`: where captures are unpacked."""

    def __init__(self, scratch: Path | None = None, cores: int = 2) -> None:
        self.cores = cores
        if scratch is not None:
            scratch.mkdir(exist_ok=True)
        self.scratch = str(scratch) if scratch is not None else None
        self.tasks = 0
        self.sent_bytes = 0
        """That went to parts."""

    def step(self) -> None:
        """A task begins or ends."""
        self.tasks += 1

    def each(self, function: Callable[[Any], Any], items: Sequence[Any], watch: Watch) -> list[Any]:
        function, items = pickle.loads(pickle.dumps((function, list(items))))
        found = []
        for item in items:
            self.step()
            found.append(function(item))
        watch(len(items), len(items) or 1)
        return found

    def sent(
        self,
        first: Callable[[Any], Any],
        items: Sequence[Any],
        parts: int,
        second: Callable[[Any], Any],
        watch: Watch,
    ) -> list[Any]:
        first, items, second = pickle.loads(pickle.dumps((first, list(items), second)))
        blocks: dict[int, list[Any]] = defaultdict(list)
        for item in items:
            self.step()
            for part, block in first(item):
                blocks[part].append(block)
        assert set(blocks) <= set(range(parts + 1))
        own = blocks.pop(parts, [])
        self.sent_bytes += sum(len(one) for some in blocks.values() for one in some)
        found = []
        for part in range(parts):
            self.step()
            found.append(second(iter(blocks[part])))
        watch(1, 1)
        return [*found, *own]


def go(sources: Sequence[Path | str], out: Path | str, cluster: Any = None, *, resume: bool = False, **more: Any) -> PipelineRun:
    """A whole run."""
    run = PipelineRun(PipelineSettings([str(source) for source in sources], **more), str(out))
    try:
        if run.prepare(resume):
            run.go(cluster if cluster is not None else Here())
    finally:
        run.close()
    return run


def brings_pandas(_: int) -> bool:
    """A task that makes an array."""
    import pyarrow as pa

    pa.array([1])
    return "pandas" in sys.modules


def takes_memory_from(_: int) -> str:
    """A task that tells where Arrow's memory comes from."""
    import pyarrow as pa

    return str(pa.default_memory_pool().backend_name)
