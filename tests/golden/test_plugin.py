"""The pytest plugin, in a pytest of its own: what is read and captured, and how a test fails."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

# what is loaded before is not loaded again by each pytest inside
import streamdump.golden.check
import streamdump.golden.record
import streamdump.golden.report  # noqa: F401
from tests.support.peers import needs_capture, said
from tests.tls.peers import Wire, talk

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "captures" / "golden"
HANDSHAKE = GOLDEN / "rabbitmq-stream" / "handshake_close_405.pcap"

TEST = """
def test_login(streamdump):
    seen = streamdump.read("login.pcap")
    assert len(seen) == 12
    assert [one.name for one in seen][:2] == ["PeerProperties", "PeerProperties"]
    assert seen.messages[0].fields["peer_properties"][0]["key"] == "product"
    assert seen.conversations[0].protocol == "rabbitmq-stream"
    assert not seen.gaps
    assert [one.number for one in seen.where("name == Open and latency")] == [10]
    assert [one.number for one in streamdump.read("login.pcap", where="name == Open")] == [9, 10]
    assert seen.matches("golden/login")
"""


@pytest.fixture
def login(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    pytester.makeini("[pytest]\naddopts = -p no:cacheprovider")
    pytester.makepyfile(TEST)
    shutil.copy(HANDSHAKE, pytester.path / "login.pcap")
    return pytester


def test_it_is_found_by_its_entry_point() -> None:
    assert [one.value for one in entry_points(group="pytest11", name="streamdump")] == ["streamdump.golden.plugin"]


def test_a_missing_golden_file_fails_and_is_written_where_asked_for(login: pytest.Pytester) -> None:
    result = login.runpytest_inprocess()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E * there is no golden file */golden/login.golden; pytest --streamdump-update writes it"])
    result = login.runpytest_inprocess("--streamdump-update")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["streamdump: 1 golden file written"])
    assert (login.path / "golden" / "login.golden").read_text().startswith("streamdump golden 1\n")
    result = login.runpytest_inprocess()
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("streamdump: *")


def test_nothing_is_written_where_ci_is_set(login: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    result = login.runpytest_inprocess("--streamdump-update")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*golden files are not written if CI is set*"])
    assert not (login.path / "golden").exists()


def test_a_failed_assertion_reads_like_a_difference(login: pytest.Pytester) -> None:
    login.runpytest_inprocess("--streamdump-update")
    golden = login.path / "golden" / "login.golden"
    golden.write_text(golden.read_text().replace('closing_reason="done – bye"', 'closing_reason="bye"'))
    result = login.runpytest_inprocess()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "E * what was seen: 1 difference from */golden/login.golden",
            'E * conversation client1: Close request: closing_reason is "done – bye", golden "bye" (packet 18)',
            'E * - > Close  closing_reason="bye"',
            'E * + > Close  closing_reason="done – bye"',
        ]
    )
    # no line of the plugin itself
    result.stdout.no_fnmatch_line("*plugin.py*")


def test_golden_files_of_no_use_are_told(login: pytest.Pytester) -> None:
    login.runpytest_inprocess("--streamdump-update")
    (login.path / "golden" / "old.golden").write_text("streamdump golden 1\n")
    # that of a capture beside it belongs to `streamdump check`
    shutil.copy(HANDSHAKE, login.path / "golden" / "x.pcap")
    (login.path / "golden" / "x.pcap.golden").write_text("streamdump golden 1\n")
    told = "streamdump: no test compared with the golden file */golden/old.golden"
    result = login.runpytest_inprocess()
    result.stdout.fnmatch_lines([told])
    result.stdout.no_fnmatch_line("*x.pcap.golden*")
    # where not all tests run, nobody knows
    login.runpytest_inprocess("-k", "login or nothing", "--deselect", "nothing").stdout.fnmatch_lines([told])
    login.runpytest_inprocess("test_a_golden_files_of_no_use_are_told.py::test_login").stdout.no_fnmatch_line(told)


def test_what_processes_of_xdist_used_is_known_at_the_end(login: pytest.Pytester) -> None:
    (login.path / "test_other.py").write_text(TEST.replace("test_login", "test_other").replace("golden/login", "golden/other"))
    login.runpytest_inprocess("--streamdump-update")
    (login.path / "golden" / "old.golden").write_text("streamdump golden 1\n")
    result = login.runpytest_subprocess("-n", "2")
    result.assert_outcomes(passed=2)
    assert [line.rpartition("/")[2] for line in result.outlines if "no test compared" in line] == ["old.golden"]


def test_settings_of_the_folder_and_of_the_call(login: pytest.Pytester) -> None:
    login.runpytest_inprocess("--streamdump-update")
    golden = login.path / "golden" / "login.golden"
    golden.write_text(golden.read_text().replace('closing_reason="done – bye"', 'closing_reason="bye"'))
    (login.path / "streamdump.toml").write_text('[check]\nignore = ["closing_reason"]\n')
    login.runpytest_inprocess().assert_outcomes(passed=1)
    (login.path / "streamdump.toml").unlink()
    for more in ('only="handshake"', 'only="names"', 'ignore=["closing_reason"]'):
        login.makepyfile(TEST.replace('matches("golden/login")', f'matches("golden/login", {more})'))
        login.runpytest_inprocess().assert_outcomes(passed=1)


def test_secrets_never_get_into_a_golden_file(login: pytest.Pytester) -> None:
    login.makepyfile(TEST.replace('"login.pcap"', '"login.pcap", show_secrets=True'))
    result = login.runpytest_inprocess("--streamdump-update")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E * ValueError: matches() compares without secrets; leave show_secrets out"])
    assert not (login.path / "golden").exists()


def test_keys_of_tls(login: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSLKEYLOGFILE", raising=False)
    one = talk(said(HANDSHAKE))
    (login.path / "login.pcap").write_bytes(Wire().send(one.sent).end().capture())
    (login.path / "keys.log").write_bytes(one.keys)
    login.makepyfile(TEST.replace('"login.pcap"', '"login.pcap", keylog="keys.log"'))
    result = login.runpytest_inprocess("--streamdump-update")
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*TLS*")
    login.makepyfile(TEST)
    monkeypatch.setenv("SSLKEYLOGFILE", "keys.log")
    result = login.runpytest_inprocess()
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["streamdump: TLS keys are read from keys.log, which SSLKEYLOGFILE names"])
    monkeypatch.delenv("SSLKEYLOGFILE")
    login.makepyfile('def test(streamdump):\n    assert streamdump.read("login.pcap").matches("golden/login")')
    result = login.runpytest_inprocess("--streamdump-update")
    result.stdout.fnmatch_lines(
        [
            "streamdump: */golden/login.golden contains no conversation, because nothing could be compared",
            "streamdump: some conversations were not decoded, and were not compared with */golden/login.golden (TLS)",
        ]
    )


LIVE = """
import sys
sys.path.insert(0, {root!r})
import pytest
from pathlib import Path
from tests.support.peers import Pair, said

def test_live(streamdump):
    with Pair() as pair, streamdump.capture(port=pair.port) as seen:
        with pytest.raises(RuntimeError, match="after the `with` block"):
            seen.messages
        pair.replay(said(Path({capture!r})))
    assert len(seen) == 12
    assert seen.matches("login")
"""


@needs_capture
def test_what_is_said_on_loopback_is_captured(login: pytest.Pytester) -> None:
    login.makepyfile(LIVE.format(root=str(ROOT), capture=str(HANDSHAKE)))
    login.runpytest_inprocess("--streamdump-update").assert_outcomes(passed=1)
    # again, from other ports; and it is what the capture says
    login.runpytest_inprocess().assert_outcomes(passed=1)
    login.makepyfile(TEST.replace("golden/login", "login"))
    login.runpytest_inprocess().assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("family", "error", "why", "advice"),
    [
        (
            True,
            "PermissionError(1, 'Operation not permitted')",
            "lo: capturing needs the capability CAP_NET_RAW",
            "Run pytest as root, in a container with `--cap-add NET_RAW`, or with a Python that may capture (`setcap cap_net_raw=ep`), "
            "or exclude this test where CI is set.",
        ),
        (False, "None", "only Linux has packet sockets", "Run this test on Linux, or exclude this test where CI is set."),
    ],
    ids=["permission", "system"],
)
def test_where_nobody_may_capture_tests_are_skipped_but_fail_in_ci(
    family: bool, error: str, why: str, advice: str, login: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    login.makeconftest(
        f"""
        import socket
        import pytest

        @pytest.fixture(autouse=True)
        def nobody(monkeypatch):
            real, packet = socket.socket, socket.AF_PACKET

            class Refused(real):
                def __init__(self, family=-1, *more, **named):
                    if family == packet:
                        raise {error}
                    super().__init__(family, *more, **named)

            monkeypatch.setattr(socket, "socket", Refused)
            if not {family}:
                monkeypatch.delattr(socket, "AF_PACKET")
        """
    )
    login.makepyfile(
        """
        def test_live(streamdump):
            with streamdump.capture(port=5552):
                raise AssertionError
        """
    )
    result = login.runpytest_inprocess("-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines([f"SKIPPED * nothing can be captured here: {why}"])
    monkeypatch.setenv("CI", "true")
    result = login.runpytest_inprocess()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines_random([f"nothing can be captured here: {why}", advice.replace("[", "[[]")])
    result.stdout.no_fnmatch_line("*During handling of the above exception*")
    result.stdout.no_fnmatch_line("*Traceback*")


def test_it_costs_nothing_where_it_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text(
        "import sys\n"
        "def test_other():\n"
        "    assert 'streamdump.golden.plugin' in sys.modules\n"
        "    assert not {'numpy', 'msgspec', 'scapy', 'streamdump.inspector', 'streamdump.protocols', 'rich.console'} & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:hypothesispytest", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout
