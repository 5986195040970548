"""Help, version, wrong calls, exit codes of inputs that are none: what needs no capture."""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Any

import pytest

import streamdump
from streamdump.cli.app import command_of, main
from streamdump.cli.exits import ExitCode
from streamdump.cli.options import LIMITS, decode_rule, decode_rules, packet_limit, size
from streamdump.errors import BARRIER, UsageError
from tests.support.pages import page
from tests.support.waiting import PATIENCE

GOLDEN = Path(__file__).parents[2] / "captures" / "golden"
HANDSHAKE = GOLDEN / "rabbitmq-stream" / "handshake_close_405.pcap"
COMMANDS = (
    "browse",
    "check",
    "conversations",
    "diagnose",
    "diff",
    "follow",
    "latency",
    "mcp",
    "metrics",
    "pipeline",
    "protocols",
    "schema",
    "scrub",
    "stats",
    "wireshark",
)


def run(*argv: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "streamdump", *argv], capture_output=True, text=True, timeout=PATIENCE, check=False, **more
    )


def test_help_begins_with_examples_and_imports_nothing_heavy() -> None:
    code = (
        "import sys; from streamdump.cli.app import main; main(['--help']);"
        "heavy = {'numpy', 'msgspec', 'rich', 'scapy', 'dpkt', 'cramjam'} & {name.split('.')[0] for name in sys.modules};"
        "print(sorted(heavy), len(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=True)
    lines = done.stdout.splitlines()
    assert lines[2].startswith("  streamdump capture.pcap")
    heavy, modules = lines[-1].rsplit(" ", 1)
    assert heavy == "[]"
    # What takes the time; tests/bench measures it
    assert int(modules) < 250
    assert all(f"  {name} " in done.stdout for name in COMMANDS)


@pytest.mark.parametrize("argv", [["diagnose", "--html"], ["latency", "--html"]], ids=" ".join)
def test_a_locale_without_letters_changes_no_page(argv: list[str], tmp_path: Path) -> None:
    pages = []
    for settings in ({"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}, {"LC_ALL": "C.UTF-8"}):
        done = run(*argv, str(tmp_path / "page.html"), str(HANDSHAKE), env=os.environ | settings)
        assert (done.returncode, "internal error" in done.stderr) == (0, False), done.stderr
        pages.append((tmp_path / "page.html").read_bytes())
    assert pages[0] == pages[1]


@pytest.mark.parametrize("argv", [[], ["diagnose"], ["latency"], ["follow", "0"]], ids=" ".join)
@pytest.mark.parametrize("barrier", ["on", "off"])
def test_too_few_files_at_once_are_one_line(argv: list[str], barrier: str) -> None:
    # Behind the interpreter's own start, which opens what the environment's .pth files ask for.
    code = "import resource, runpy; resource.setrlimit(resource.RLIMIT_NOFILE, (4, 4)); runpy.run_module('streamdump', run_name='__main__')"
    command = [sys.executable, "-c", code, *argv, str(HANDSHAKE)]
    environment = os.environ | {BARRIER: barrier}
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False, env=environment)
    assert (done.returncode, done.stdout) == (ExitCode.USAGE, "")
    assert done.stderr == "streamdump: too many open files; raise the limit with ulimit -n\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == ExitCode.DONE
    text = capsys.readouterr().out
    about, examples, _ = text.split("\n\n", 2)
    assert len(about.splitlines()) < 3
    assert examples.startswith(f"  streamdump {name}") and "\n\n\n" not in text
    assert "--help" in text


@pytest.mark.parametrize("columns", [60, 80, 200])
@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help_is_not_wider_than_the_terminal(
    name: str, columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for option in ("-h", "--help"):
        assert main([*([name] if name else []), option]) == ExitCode.DONE
        text = capsys.readouterr().out
        # a call stands in one line, however long it is
        assert all(len(line) <= columns for line in text.splitlines() if not line.startswith(("  streamdump ", "  tcpdump ", "Usage ")))


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_the_short_help_has_at_most_ten_options_and_names_the_rest(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    main([*([name] if name else []), "-h"])
    text = capsys.readouterr().out
    known = [option for one in command_of(("read", *COMMANDS)).commands[name or "read"].params for option in one.opts if option[0] == "-"]
    shown = re.findall(r"^  (-\S+)", text, re.M)
    assert len(shown) == min(10, len(known)) and {one.rstrip(",") for one in shown} <= {*known}
    assert f"{f'streamdump {name}'.rstrip()} --help shows " in " ".join(text.split())
    assert name or shown[:4] == ["-Y", "-V", "-x", "-c"]


def test_help_of_a_topic(capsys: pytest.CaptureFixture[str]) -> None:
    for argv, same in ((["help"], ["--help"]), (["help", "stats"], ["stats", "--help"])):
        said = []
        for one in (argv, same):
            assert main(one) == ExitCode.DONE
            said.append(capsys.readouterr().out)
        assert said[0] == said[1]
    assert main(["help", "filters"]) == ExitCode.DONE
    assert capsys.readouterr().out == page("cli/docs/filters.md")
    assert main(["help", "filter"]) == ExitCode.USAGE
    assert capsys.readouterr().err == "streamdump: no help on filter; did you mean filters?\n"
    assert main(["help", "zzz"]) == ExitCode.USAGE
    assert "the pages are browse, check, cookbook" in capsys.readouterr().err


@pytest.mark.parametrize("columns", [1, 44, 55, 57, 80])
def test_on_a_narrow_terminal_what_an_option_does_is_below_it(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for argv in (["latency", "-h"], ["help", "limits"]):
        assert main(argv) == ExitCode.DONE
        lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("Usage")]
        assert columns == 1 or max(map(len, lines)) <= columns
        below = "  --slowest N" in lines or "  --open-limit N" in lines
        assert below is (columns < 56)


def test_limits_are_a_topic_that_the_help_of_reading_commands_names(capsys: pytest.CaptureFixture[str]) -> None:
    main(["help", "limits"])
    text = capsys.readouterr().out
    commands = command_of(("read", *COMMANDS)).commands
    limits = {one.opts[0] for command in commands.values() for one in command.params if getattr(one, "rich_help_panel", "") == LIMITS}
    assert len(limits) > 10 and {*re.findall(r"^  (-\S+)", text, re.M)} == limits
    for name, command in commands.items():
        main([*([] if name == "read" else [name]), "--help"])
        text = capsys.readouterr().out
        some = any(option in limits for one in command.params for option in one.opts)
        assert some is ("streamdump help limits  " in text), name
        assert not any(f"  {option} " in text for option in limits)


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("--jso", "did you mean --json?"),
        ("--colour", "did you mean --color?"),
        ("--foo", "streamdump --help lists the options"),
        ("-Z", "streamdump --help lists the options"),
        ("-R", "use -Y, such as -Y 'name == Open'"),
        ("-o", "there are no preferences; --keylog FILE names the TLS key log"),
    ],
)
def test_an_unknown_option_comes_with_a_hint(option: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([option, "x.pcap"]) == ExitCode.USAGE
    assert capsys.readouterr().err == f"streamdump: no such option {option}; {hint}\n"


def test_help_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--help"])
    text = capsys.readouterr().out
    reading = command_of(("read", "check")).commands["read"]
    for parameter in reading.params:
        if parameter.param_type_name == "option":
            limit = parameter.rich_help_panel == LIMITS
            assert limit or all(f"{option} " in text or f"{option}\n" in text for option in parameter.opts), parameter.opts
            assert parameter.help


def test_a_call_makes_no_commands_that_it_does_not_take() -> None:
    code = "import sys; from streamdump.cli.app import main; main(sys.argv[1:]);"
    code += "print(*[one for one in sys.modules if one.startswith('streamdump.cli.commands.')])"
    plain = str(GOLDEN / "rabbitmq-stream" / "handshake_close_405.pcap")
    for argv, made in (([plain], "read"), (["schema"], "read schema"), (["-q", "-r", plain], "read")):
        done = subprocess.run([sys.executable, "-c", code, *argv], capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1].split() == [f"streamdump.cli.commands.{one}" for one in made.split()]


def test_an_interruption_while_it_is_loaded_is_silent() -> None:
    code = (
        "import sys\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'typer': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "from streamdump.cli.__main__ import main\n"
        "sys.exit(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", code, "x.pcap"], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (ExitCode.INTERRUPTED, "", "")


@pytest.mark.parametrize("package", [False, True])
def test_modules_of_the_folder_one_stands_in_are_not_taken_for_its_own(package: bool, tmp_path: Path) -> None:
    """The command, the library and the plugin of pytest."""
    for name in ("cli", "dissect"):
        foreign = tmp_path / name / "__init__.py" if package else tmp_path / f"{name}.py"
        foreign.parent.mkdir(exist_ok=True)
        foreign.write_text("raise RuntimeError('it was taken')\n")
    (tmp_path / "test_one.py").write_text(f"def test_one(streamdump):\n    assert len(streamdump.read({str(HANDSHAKE)!r})) == 12\n")
    reading = f"import streamdump; print(len(list(streamdump.read({str(HANDSHAKE)!r}))))"
    whole = "import sys; from importlib.metadata import entry_points as named; sys.exit(*[one.load()() for one in {}])"
    whole = whole.format("named(group='console_scripts', name='streamdump')")
    for argv in (
        ["-m", "streamdump", "-q", str(HANDSHAKE)],
        ["-c", whole, "-q", str(HANDSHAKE)],
        ["-c", reading],
        ["-m", "pytest", "-q", "-p", "no:cacheprovider", "test_one.py"],
    ):
        done = subprocess.run([sys.executable, *argv], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert done.returncode == 0, (argv, done.stdout, done.stderr)
    assert "1 passed" in done.stdout


def test_all_that_is_installed_has_one_name() -> None:
    started = [one.value for group in ("console_scripts", "pytest11") for one in entry_points(group=group, name="streamdump")]
    assert started == ["streamdump.cli.__main__:main", "streamdump.golden.plugin"]
    done = subprocess.run(
        [sys.executable, "-c", "import importlib.util as one; print(one.find_spec('cli'), one.find_spec('dissect'))"],
        cwd="/",
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    assert done.stdout == "None None\n"


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == ExitCode.DONE
    assert capsys.readouterr().out == f"streamdump {streamdump.__version__}\n"


def test_version_for_reports(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version", "-v"]) == ExitCode.DONE
    first, system, *libraries, libpcap = capsys.readouterr().out.splitlines()
    assert first == f"streamdump {streamdump.__version__}"
    assert system.split()[:2] == [platform.python_implementation(), platform.python_version()]
    assert f"dpkt {version('dpkt')}" in libraries
    assert f"scapy {version('scapy')}" in libraries
    assert libpcap.startswith(("libpcap version ", "no libpcap"))


def test_v_alone_is_told_what_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-v", "x.pcap"]) == ExitCode.USAGE
    assert "-V shows every field" in capsys.readouterr().err
    assert streamdump.__version__ == version("streamdump")
    assert not hasattr(streamdump, "__versions__")


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (["--jsno", "x"], "no such option --jsno; did you mean --json?"),
        (["-Z", "x"], "no such option -Z"),
        (["-T", "jsom", "x"], "-T jsom: must be text, json, fields, tabs or csv; did you mean json?"),
        (["-t", "x", "x"], "-t x: must be r, ad, ud, e, d or dd"),
        (["--bytes", "x", "x"], "--bytes x: must be hex, base64, text or omit"),
        (["--color", "x", "x"], "--color x: must be auto, always or never"),
        (["-c", "few", "x"], "-c few: must be an integer, 1 or greater"),
        (["-c", "0", "x"], "-c 0: must be an integer, 1 or greater"),
        (["-a", "packets:x", "x"], "-a packets:x: N must be a number"),
        (["-a", "duration:3", "x"], "-a duration:3: needs live capture (-i); use packets:N"),
        (["-a", "files:3", "x"], "-a files:3: unknown condition; use packets:N"),
        (["-f", "tcp port 5552", "x"], "-f filters live capture (-i); to filter a file use -Y"),
        (["--json", "-V", "x"], "-V is a view of text output"),
        (["--json", "-x", "x"], "-x is a view of text output"),
        (["-T", "fields", "-e", "name", "-V", "x"], "-V is a view of text output; choose fields with -e"),
        (["-T", "fields", "--json", "-e", "name", "x"], "json and fields cannot be combined; choose one"),
        (["-T", "fields", "x"], "-T fields needs -e NAME"),
        (["-e", "name", "x"], "-e needs -T fields"),
        (["-E", "header=y", "x"], "-E needs -T fields"),
        (["-T", "fields", "-e", "nmae", "x"], "-e nmae: no field has that name; did you mean name?"),
        (["-T", "fields", "-e", "frame.len", "x"], "-e frame.len: no field has that name; did you mean size?"),
        (["-T", "fields", "-e", "options[a]", "x"], '-e options[a]: no field has that name; did you mean options["a"]?'),
        (["-T", "fields", "-e", "name == x", "x"], "-e name == x: no field has that name"),
        (["-T", "fields", "-e", "\x1b", "x"], r"-e \x1b: no field has that name"),
        (["-T", "fields", "-e", "name", "-E", "separator=ab", "x"], "-E separator=ab: must be header=y, separator=C"),
        (["protocols", "--fields", "igy"], "did you mean iggy?"),
        (["-d", "udp.port==1,iggy", "x"], "write it as tcp.port==N,PROTOCOL"),
        (["-d", "tcp.port==0,iggy", "x"], "0 is not a port number"),
        (["--frame-limit", "big", "x"], "--frame-limit big: not a size"),
        (["--waiting-time", "-1", "x"], "--waiting-time -1: not a time"),
        (["-", "-"], "only once"),
        (["conversations", "--exchanges", "x"], "no such option --exchanges; streamdump conversations --help lists the options"),
        (["schema", "extra"], "(extra); see streamdump schema --help"),
        (["-w"], "see streamdump --help"),
    ],
    ids=str,
)
def test_a_wrong_call_is_told_in_one_sentence(argv: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == ExitCode.USAGE
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith("streamdump: ")
    assert err.count("\n") == 1
    assert reason in err


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (["-c", "N", "x"], "must be an integer, 1 or greater"),
        (["--frame-limit", "NK", "x"], "not a size"),
        (["--timeout", "N", "x"], "not a time"),
        (["-a", "packets:N", "x"], "N must be a number"),
        (["-d", "tcp.port==N,iggy", "x"], "is not a port number"),
        (["follow", "N", "x"], "not a conversation number"),
    ],
    ids=str,
)
def test_thousands_of_digits_are_not_a_number(argv: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([one.replace("N", "9" * 5_000) for one in argv]) == ExitCode.USAGE
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("empty.pcap", b"", "is empty"),
        ("text.pcap", b"This is not a capture.\n", "is not a capture"),
        ("zipped.pcap", b"PK\3\4\x14\0", "is not a capture but a zip archive; unpack it first"),
        ("tarred.pcap", b"x.pcap".ljust(257, b"\0") + b"ustar", "is not a capture but a tar archive; unpack it first"),
        ("short.pcap", b"\xd4\xc3", "is cut off"),
        ("header.pcap", b"\xd4\xc3\xb2\xa1\x02\x00\x04\x00\x00\x00", "cut off"),
    ],
)
def test_an_input_that_is_no_capture(name: str, content: bytes, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / name).write_bytes(content)
    assert main([str(tmp_path / name)]) == ExitCode.UNREADABLE
    out, err = capsys.readouterr()
    assert not out
    assert reason in err
    assert str(tmp_path / name) in err


def test_missing_files_directories_and_commands_in_the_wrong_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "none.pcap")]) == ExitCode.UNREADABLE
    assert "none.pcap: no such file" in capsys.readouterr().err
    assert main([str(tmp_path)]) == ExitCode.UNREADABLE
    assert f"is a directory; {tmp_path}/* names the files in it" in capsys.readouterr().err
    assert main(["converstions"]) == ExitCode.UNREADABLE
    assert "did you mean the command conversations?" in capsys.readouterr().err
    assert main(["-q", "schema"]) == ExitCode.UNREADABLE
    assert "put the command first" in capsys.readouterr().err
    assert main(["nothing"]) == ExitCode.UNREADABLE
    assert "streamdump --help" in capsys.readouterr().err


@pytest.mark.parametrize(
    "view",
    [
        ["stats"],
        ["stats", "--json"],
        ["latency", "--csv"],
        ["follow", "0"],
        ["-T", "csv"],
        ["diagnose"],
        pytest.param(["metrics"], marks=pytest.mark.witness),
    ],
    ids=" ".join,
)
def test_where_nothing_could_be_read_no_results_are_shown(view: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*view, str(tmp_path), str(tmp_path / "none.pcap")]) == ExitCode.UNREADABLE
    out, err = capsys.readouterr()
    assert not out
    assert [line.partition("; ")[0] for line in err.splitlines()] == [
        f"streamdump: {tmp_path}: is a directory",
        f"streamdump: {tmp_path}/none.pcap: no such file",
    ]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["diag"], "diag: no such file; did you mean the command diagnose?"),
        (["convs"], "convs: no such file; did you mean the command conversations?"),
        (["-q", "latency"], "latency: no such file; put the command first: streamdump latency FILE"),
        (["-Y", "name", "==", "Open"], "==: no such file; quote the filter, so that it is one argument: -Y 'name == Open'"),
        (["name==Open"], "name==Open: no such file; to filter, use -Y name==Open"),
        (["latency>5ms"], "latency>5ms: no such file; to filter, use -Y 'latency>5ms'"),
        (
            ["packets"],
            "packets: no such file; streamdump --help lists the commands; to filter, use -Y, such as -Y 'name == Open'",
        ),
    ],
    ids=str,
)
def test_a_slip_is_told_before_any_capture_is_read(words: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    capture = str(GOLDEN / "iggy" / "seed-failures.pcap")
    for argv in ([*words, capture], [*words[:-1], capture, words[-1]] if words[0] != "-Y" else [*words, capture]):
        assert main(argv) == ExitCode.UNREADABLE
        out, err = capsys.readouterr()
        assert not out
        assert err == f"streamdump: {reason}\n"


def test_a_capture_may_be_named_like_what_would_be_a_slip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("diag", "in"):
        shutil.copy(GOLDEN / "iggy" / "seed-failures.pcap", name)
    assert main(["-q", "diag", "in"]) == ExitCode.DONE
    assert "no such file" not in capsys.readouterr().err


def test_names_of_files_reach_the_terminal_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["no\x1b[31m\u202esuch.pcap"]) == ExitCode.UNREADABLE
    err = capsys.readouterr().err
    assert r"no\x1b[31m\u202esuch.pcap" in err
    assert "\x1b" not in err


@pytest.mark.parametrize(("text", "number"), [("65536", 65536), ("64K", 65536), ("1m", 1 << 20), ("2G", 2 << 30)])
def test_sizes(text: str, number: int) -> None:
    assert size("--frame-limit", text) == number


@pytest.mark.parametrize("text", ["", "0", "-1", "K", "1.5M", "²", "1T"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(UsageError):
        size("--frame-limit", text)


def test_the_smallest_packet_limit_counts() -> None:
    assert packet_limit(["packets:9", "packets:3"]) == 3
    assert packet_limit(None) is None


@pytest.mark.parametrize("rule", ["", "tcp.port==1", "tcp.port=1,x", "tcp.port==x,iggy", "tcp.port==70000,iggy", "tcp.port==1,nothing"])
def test_no_decode_rules(rule: str) -> None:
    with pytest.raises(UsageError):
        decode_rule(rule)


@pytest.mark.parametrize("rule", ["tcp.port==1,iggy:", "tcp.port==1,iggy: ", "tcp.port==1,mewbase:"])
def test_a_colon_must_be_followed_by_a_layout(rule: str) -> None:
    with pytest.raises(UsageError, match=r"no layout after the colon; (use one of|it has no)"):
        decode_rule(rule)
    assert decode_rule("tcp.port==1,iggy") == (1, "iggy", None)
    assert decode_rule("tcp.port==1,iggy:V4") == (1, "iggy", "V4")


def test_a_port_is_decoded_as_one_thing_only() -> None:
    two = ["tcp.port==1,iggy", "tcp.port==2,iggy:V4"]
    assert decode_rules([*two, *two]) == ((1, "iggy", None), (2, "iggy", "V4"))
    with pytest.raises(UsageError, match=r"port 2 was given as iggy before"):
        decode_rules([*two, "tcp.port==2,mewbase"])


def test_module_call_is_the_same_command() -> None:
    done = run("nosuch.pcap")
    assert done.returncode == ExitCode.UNREADABLE
    assert done.stderr == "streamdump: nosuch.pcap: no such file\n"


@pytest.mark.parametrize("argv", [["schema"], ["--help"], ["--version"], ["conversations", "--help"]])
def test_a_full_disk_is_told(argv: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "streamdump", *argv], stdout=full, stderr=subprocess.PIPE, text=True, timeout=PATIENCE, check=False
        )
    assert done.returncode == ExitCode.USAGE
    assert done.stderr == "streamdump: standard output cannot be written: No space left on device\n"


@pytest.mark.parametrize("argv", [["schema"], ["--help"], ["--version"]])
def test_a_reader_that_has_gone_is_no_trouble(argv: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "streamdump", *argv], stdout=write, stderr=subprocess.PIPE, text=True, timeout=PATIENCE, check=False
        )
    finally:
        os.close(write)
    assert done.returncode == ExitCode.DONE
    assert not done.stderr


@pytest.mark.parametrize(
    ("call", "code", "out", "err"),
    [
        ("--version >&-", ExitCode.USAGE, "", "streamdump: standard output cannot be written: Bad file descriptor\n"),
        ("--help >&-", ExitCode.USAGE, "", "streamdump: standard output cannot be written: Bad file descriptor\n"),
        ("CAPTURE >&-", ExitCode.USAGE, "", "streamdump: standard output cannot be written: Bad file descriptor\n"),
        ("-w - CAPTURE >&-", ExitCode.USAGE, "", "streamdump: -w standard output: cannot be written: bad file descriptor\n"),
        ("--version 2>&-", ExitCode.DONE, f"streamdump {version('streamdump')}\n", ""),
        ("-q CAPTURE 2>&-", ExitCode.DONE, "", ""),
        ("CAPTURE <&- >&- 2>&-", ExitCode.USAGE, "", ""),
        ("- <&-", ExitCode.UNREADABLE, "", "streamdump: standard input: is empty\n"),
        ("<&-", ExitCode.UNREADABLE, "", "streamdump: standard input: is empty\n"),
    ],
)
def test_closed_streams(call: str, code: int, out: str, err: str) -> None:
    argv = call.replace("CAPTURE", shlex.quote(str(GOLDEN / "rabbitmq-stream" / "handshake_close_405.pcap")))
    done = subprocess.run(
        f"{shlex.quote(sys.executable)} -m streamdump {argv}", shell=True, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (code, out, err)


def test_standard_input_may_be_closed_or_empty() -> None:
    done = run("-", stdin=subprocess.DEVNULL)
    assert done.returncode == ExitCode.UNREADABLE
    assert done.stderr == "streamdump: standard input: is empty\n"
