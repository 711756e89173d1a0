"""What goes wrong on the command line ends in one line on stderr and the exit code that it has."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from siltwin.isa.errors import ConfigError, SiltwinError

Cli = Callable[..., Result]


@pytest.mark.parametrize("code", [2, 3, 4, 5])
def test_an_error_is_one_line_on_stderr_and_its_own_exit_code(siltwin: Cli, fakes: Any, code: int) -> None:
    class Failed(SiltwinError):
        exit_code = code

    fakes.raises(Failed("tp=2 does not divide 9 heads"))
    result = siltwin("run", "tiny", "--prompt", "x")
    assert (result.exit_code, result.stdout, result.stderr) == (code, "", "error: tp=2 does not divide 9 heads\n")


def test_a_bug_of_ours_exits_1_and_says_how_to_see_the_traceback(siltwin: Cli, fakes: Any) -> None:
    fakes.raises(KeyError("gone"))
    result = siltwin("run", "tiny", "--prompt", "x")
    assert result.exit_code == 1
    assert result.stderr.startswith("internal error: KeyError: 'gone'\n")
    assert "SILTWIN_DEBUG=1" in result.stderr and "Traceback" not in result.stderr
    assert "Traceback" in siltwin("run", "tiny", "--prompt", "x", SILTWIN_DEBUG="1").stderr


def test_an_interrupt_exits_130_without_a_traceback(siltwin: Cli, fakes: Any) -> None:
    fakes.raises(KeyboardInterrupt())
    result = siltwin("run", "tiny", "--prompt", "x")
    assert (result.exit_code, result.stderr) == (130, "interrupted\n")


def test_an_error_cannot_command_the_terminal(siltwin: Cli, fakes: Any) -> None:
    fakes.raises(ConfigError("no model \x1b[31mred"))
    assert siltwin("run", "tiny", "--prompt", "x").stderr == "error: no model \\x1b[31mred\n"


WRONG = {
    "nothing after a set": (("--set", "clock_hz"), "--set 'clock_hz' is not key=value"),
    "no key before a set": (("--set", "=3"), "--set '=3' is not key=value"),
    "prompt and batch": (("--batch", "2"), "--prompt and --batch are given"),
    "output length alone": (("--output-len", "2"), "--output-len sizes the sequences of --batch N"),
    "negative new tokens": (("--max-new-tokens", "-1"), "--max-new-tokens=-1 must be from 1"),
    "no chunk": (("--chunk-tokens", "0"), "--chunk-tokens=0 must be from 1"),
    "cold": (("--temperature", "-0.5"), "--temperature=-0.5 must be 0 (greedy) or a positive, finite number"),
    "not a temperature": (("--temperature", "nan"), "--temperature=nan must be"),
    "top-p of nothing": (("--top-p", "0"), "--top-p=0.0 must be above 0 and at most 1"),
    "top-p of more than all": (("--top-p", "1.5"), "--top-p=1.5 must be above 0 and at most 1"),
    "negative top-k": (("--top-k", "-1"), "--top-k=-1 must be from 0"),
    "negative seed": (("--seed", "-1"), "--seed=-1 must be from 0"),
    "logits of no payload": (("--no-payload", "--logits", "x.npz"), "logits need the payload"),
    "trace to stdout": (("--trace", "-"), "stdout is for the report"),
    "json into a directory": (("--json", "."), "cannot write '.': it is a directory"),
    "two outputs in one file": (
        ("--json", "x.out", "--trace", "./x.out"),
        "cannot write './x.out': another output goes there",
    ),
    "json into no name": (("--json", ""), "cannot write '': "),
    "a name too long": (("--trace", "x" * 5000), "File name too long"),
    "a name with a null": (("--logits", "a\0b"), "null"),
    "json into nowhere": (("--json", "no/where.json"), "there is no directory 'no'"),
}


@pytest.mark.parametrize("options, message", WRONG.values(), ids=WRONG.keys())
def test_a_wrong_option_is_refused_before_anything_runs(
    siltwin: Cli, fakes: Any, options: tuple[str, ...], message: str
) -> None:
    result = siltwin("run", "tiny", "--prompt", "x", *options)
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("error: ") and message in result.stderr
    assert fakes.job is None


@pytest.mark.parametrize("options", [("--batch", "many"), ("--engine", "magic"), ("--no-such-option",), ("stray",)])
def test_what_click_refuses_exits_2_with_the_usage(siltwin: Cli, fakes: Any, options: tuple[str, ...]) -> None:
    result = siltwin("run", "tiny", *options)
    assert result.exit_code == 2 and result.stderr.startswith("Usage: ")


BAD_IDS = {
    "not json": ("[[1,", "not valid JSON"),
    "flat": ("[1, 2]", "a list of lists of token ids"),
    "an object": ('{"a": 1}', "a list of lists of token ids"),
    "nothing": ("[]", "a list of lists of token ids"),
    "an empty prompt": ("[[1], []]", "prompt 1 is empty"),
    "a float": ("[[1, 2.0]]", "prompt 0 holds 2.0"),
    "a bool": ("[[true]]", "prompt 0 holds True"),
    "text": ('[["a"]]', "prompt 0 holds 'a'"),
    "deep": ("[" * 100_000, "not valid JSON"),
}


@pytest.mark.parametrize("text, message", BAD_IDS.values(), ids=BAD_IDS.keys())
def test_prompt_ids_of_another_form_are_refused(
    siltwin: Cli, fakes: Any, tmp_path: Path, text: str, message: str
) -> None:
    file = tmp_path / "ids.json"
    file.write_text(text)
    result = siltwin("run", "tiny", "--prompt-ids", str(file))
    assert result.exit_code == 2 and message in result.stderr and str(file) in result.stderr


def test_a_file_that_is_not_there_or_not_text_is_an_error_with_its_name(
    siltwin: Cli, fakes: Any, tmp_path: Path
) -> None:
    result = siltwin("run", "tiny", "--prompt-ids", "gone.json")
    assert (result.exit_code, result.stderr) == (2, "error: cannot read 'gone.json': No such file or directory\n")
    file = tmp_path / "latin.json"
    file.write_bytes(b"[[\xff]]")
    assert "not UTF-8 text (byte 2)" in siltwin("run", "tiny", "--prompt-ids", str(file)).stderr


def test_garbage_is_no_program(siltwin: Cli, tmp_path: Path) -> None:
    file = tmp_path / "garbage"
    file.write_bytes(bytes(range(256)))
    for command in ("asm", "disasm"):
        result = siltwin(command, str(file))
        assert result.exit_code == 2 and result.stderr.startswith("error: ")
    file.write_text("program p\nnonsense here")
    assert "line 2" in siltwin("asm", str(file)).stderr


@pytest.mark.parametrize("command", ["cards", "models"])
def test_lists_say_that_they_cannot_be_written_before_they_are_made(siltwin: Cli, command: str) -> None:
    result = siltwin(command, "of no such name", "--json", ".")
    assert (result.exit_code, result.stderr) == (2, "error: cannot write '.': it is a directory\n")


@pytest.mark.parametrize("command", ["cards", "models", "schema"])
def test_a_stdout_without_room_is_the_users_error(command: str) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "siltwin", command], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert (done.returncode, done.stderr) == (2, "error: No space left on device\n")


@pytest.mark.skipif(os.name != "posix", reason="closes a stream with the shell")
@pytest.mark.parametrize("stream, code", [(">&-", 0), ("2>&-", 0), ("<&-", 0)])
def test_a_closed_stream_is_done_without(stream: str, code: int) -> None:
    done = subprocess.run(f"{sys.executable} -m siltwin cards {stream}", shell=True, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (code, "")


def test_looking_at_outputs_first_leaves_no_file_and_changes_none(siltwin: Cli, fakes: Any, tmp_path: Path) -> None:
    fakes.raises(ConfigError("no"))
    new, old = tmp_path / "new.json", tmp_path / "old.json"
    old.write_text("kept")
    siltwin("run", "tiny", "--prompt", "x", "--json", str(new), "--trace", str(old))
    assert fakes.job is not None and not new.exists() and old.read_text() == "kept"


def test_a_directory_that_may_not_be_written_is_refused_before_the_run(
    siltwin: Cli, fakes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(self: Path, *args: object) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "open", forbidden)
    result = siltwin("run", "tiny", "--prompt", "x", "--json", "x.json")
    assert (result.exit_code, fakes.job) == (2, None)
    assert result.stderr == "error: cannot write 'x.json': Permission denied\n"


def test_the_null_device_may_take_several_outputs(siltwin: Cli, fakes: Any) -> None:
    if not Path("/dev/null").exists():
        pytest.skip("no /dev/null on this system")
    assert siltwin("run", "tiny", "--prompt", "x", "--json", "/dev/null", "--trace", "/dev/null").exit_code == 0


def test_an_output_without_room_is_the_users_error(siltwin: Cli) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    result = siltwin("cards", "--json", "/dev/full")
    assert (result.exit_code, result.stderr) == (2, "error: cannot write '/dev/full': No space left on device\n")
