"""The pure parts of the python tool."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
from pydantic import ByteSize

from workers.toolservers.python.answer import MAX_INVALID_LINES, Answer, AnswerReader, CallOutcome, StopReason
from workers.toolservers.python.jail.jailer import memory_of
from workers.toolservers.python.jail.seccomp import ALLOWED, EXAMINED, Machine, filter_for, numbers
from workers.toolservers.python.limits import Limits
from workers.toolservers.python.output import TruncatedOutput, truncate_middle
from workers.toolservers.python.tool import explain, result_of

ALLOW, KILL, EPERM, ENOSYS = 0x7FFF0000, 0x80000000, 0x00050001, 0x00050026


def verdict(machine: Machine, number: int, *arguments: int, arch: int | None = None) -> int:
    """Runs the filter as Linux does."""
    program = list(struct.iter_unpack("=HBBI", filter_for(machine)))
    values = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("=IIQ6Q", number, machine.audit_arch if arch is None else arch, 0, *values)
    at = accumulator = 0
    while True:
        code, then, otherwise, operand = program[at]
        at += 1
        match code:
            case 0x20:
                (accumulator,) = struct.unpack_from("=I", data, operand)
            case 0x06:
                return int(operand)
            case 0x15:
                at += then if accumulator == operand else otherwise
            case 0x35:
                at += then if accumulator >= operand else otherwise
            case 0x45:
                at += then if accumulator & operand else otherwise
            case _:
                raise AssertionError(code)


@pytest.mark.parametrize(
    ("machine", "numbers"),
    [
        (Machine.X86_64, {"read": 0, "clone": 56, "socket": 41, "mount": 165, "ioctl": 16, "prlimit64": 302}),
        (Machine.AARCH64, {"read": 63, "clone": 220, "socket": 198, "mount": 40, "ioctl": 29, "prlimit64": 261}),
    ],
)
def test_the_filter_allows_listed_calls_and_checks_arguments(machine: Machine, numbers: dict[str, int]) -> None:
    assert verdict(machine, numbers["read"]) == ALLOW
    assert verdict(machine, numbers["mount"]) == ENOSYS
    assert verdict(machine, 435) == ENOSYS  # clone3: the filter cannot see its flags
    assert verdict(machine, 425) == ENOSYS  # io_uring
    assert verdict(machine, 9999) == ENOSYS
    assert verdict(machine, numbers["clone"], 0x01200011) == ALLOW  # fork
    for flag in (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
        assert verdict(machine, numbers["clone"], flag | 17) == EPERM
    assert verdict(machine, numbers["socket"], 1) == ALLOW
    assert [verdict(machine, numbers["socket"], family) for family in (0, 2, 10, 16, 17, 40)] == [EPERM] * 6
    assert verdict(machine, numbers["socket"], 1 + 2**32) == ALLOW  # Linux ignores the upper half
    assert verdict(machine, numbers["ioctl"], 0, 0x5401) == ALLOW
    assert verdict(machine, numbers["ioctl"], 0, 0x5412) == EPERM  # TIOCSTI
    assert verdict(machine, numbers["prlimit64"], 0) == ALLOW
    assert verdict(machine, numbers["prlimit64"], 1) == EPERM


@pytest.mark.parametrize(("machine", "fcntl", "setsockopt"), [(Machine.X86_64, 72, 54), (Machine.AARCH64, 25, 208)])
def test_no_code_can_enlarge_the_buffers_of_its_pipes_and_sockets(
    machine: Machine, fcntl: int, setsockopt: int
) -> None:
    """No limit of memory counts them, so their number times their first size is the bound."""
    assert verdict(machine, fcntl, 3, 1031) == EPERM  # F_SETPIPE_SZ
    assert verdict(machine, fcntl, 3, 1032) == ALLOW
    assert [verdict(machine, setsockopt, 3, 1, option) for option in (7, 8, 32, 33)] == [EPERM] * 4
    assert verdict(machine, setsockopt, 3, 1, 2) == ALLOW  # SO_REUSEADDR


def test_system_calls_of_another_architecture_end_the_process() -> None:
    assert verdict(Machine.X86_64, 20, arch=0x40000003) == KILL  # i386
    assert verdict(Machine.X86_64, 0x40000000) == KILL  # x32
    assert verdict(Machine.AARCH64, 20, arch=Machine.X86_64.audit_arch) == KILL


@pytest.mark.parametrize("machine", Machine)
def test_no_system_call_is_in_two_lists(machine: Machine) -> None:
    both = [*numbers(ALLOWED, machine).values(), *numbers(EXAMINED, machine).values()]
    assert len(both) == len(set(both))
    assert len(filter_for(machine)) // 8 <= 4096  # the limit of Linux


def memory_in(folder: Path, limit: int) -> int:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        return memory_of(descriptor, limit)
    finally:
        os.close(descriptor)


def test_the_watcher_counts_what_is_swapped_out_and_divides_what_is_shared(tmp_path: Path) -> None:
    for pid in ("1", "2"):
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "status").write_text("Name:\tpython\nVmRSS:\t     100 kB\nVmSwap:\t     300 kB\n")
    (tmp_path / "self").mkdir()
    assert memory_in(tmp_path, 800 * 1024) == 0
    assert memory_in(tmp_path, 799 * 1024) == 800 * 1024  # smaps are hidden
    for pid in ("1", "2"):
        (tmp_path / pid / "smaps_rollup").write_text("Rss: 100 kB\nPss: 50 kB\nSwap: 300 kB\nSwapPss: 150 kB\n")
    assert memory_in(tmp_path, 799 * 1024) == 400 * 1024


def test_the_watcher_reads_the_kernel_s_own_files() -> None:
    assert memory_in(Path("/proc"), 1) > 1024**2


@pytest.mark.parametrize("pieces", [[b"x" * 1000], [b"x"] * 1000, [b"x" * 9, b"x" * 991], [b"x" * 700, b"x" * 300]])
def test_truncated_output_keeps_both_ends_however_the_data_arrive(pieces: list[bytes]) -> None:
    kept = TruncatedOutput(100)
    for piece in [b"start", *pieces, b"end"]:
        kept.add(piece)
    text = kept.text()
    assert text == "start" + "x" * 45 + "\n[... 908 bytes left out ...]\n" + "x" * 47 + "end"
    assert kept.total == 1008


def test_output_within_its_limit_is_whole() -> None:
    kept = TruncatedOutput(100)
    kept.add(b"x" * 60)
    kept.add(b"y" * 40)
    assert kept.text() == "x" * 60 + "y" * 40


def test_text_that_is_truncated_twice_gives_no_wrong_number() -> None:
    assert truncate_middle("a" * 100, 100) == "a" * 100
    assert truncate_middle("a" * 101, 100) == "a" * 50 + "\n[... the middle is left out ...]\n" + "a" * 50


def read_answers(*data: bytes, max_bytes: int = 1000) -> tuple[list[Answer], int]:
    """The answers, and the number of floods."""
    answers: list[Answer] = []
    floods: list[None] = []
    stream = AnswerReader(max_bytes, answers.append, lambda: floods.append(None))
    stream.reset()
    for piece in data:
        stream.add(piece)
    return answers, len(floods)


def test_answers_are_read_from_any_pieces() -> None:
    line = b'{"id": 1, "result": "42", "error": null, "images": []}\n'
    assert read_answers(line * 2) == ([Answer(id=1, result="42")] * 2, 0)
    assert read_answers(*(line[at : at + 1] for at in range(len(line)))) == ([Answer(id=1, result="42")], 0)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"[]",
        b"nonsense",
        b'{"id": "1"}',
        b'{"id": true}',
        b'{"id": 1, "result": 42}',
        b'{"id": 1, "images": ["!"]}',
        b'{"id": 1, "images": [1]}',
        b'{"id": 1, "images": ' + b"[" * 200 + b"]" * 200 + b"}",
        b'{"id": 1' + b"0" * 500 + b', "result": 1}',
        b"\xff\xfe",
    ],
)
def test_an_invalid_line_is_no_answer(line: bytes) -> None:
    assert read_answers(line + b"\n") == ([], 0)


def test_a_flood_of_answers_is_reported_and_ignored() -> None:
    answers, floods = read_answers(b"x" * 600, b"x" * 600, b'\n{"id": 1}\n')
    assert (answers, floods) == ([], 2)
    answers, floods = read_answers(b"\n" * (MAX_INVALID_LINES + 1), b'{"id": 1}\n')
    assert (answers, floods) == ([], 1)


@pytest.mark.parametrize("ending", StopReason)
def test_every_stop_reason_has_a_sentence(ending: StopReason) -> None:
    lost = explain(CallOutcome(killed=ending, state_lost=True), Limits())
    kept = explain(CallOutcome(killed=ending), Limits())
    assert lost.startswith("[Stopped: ") and lost.endswith(". Its names are lost; the next call starts anew.]")
    assert kept.endswith(". Earlier names are kept.]")
    result = result_of(CallOutcome(stdout="so far", killed=ending), False, Limits())
    assert result.is_error
    assert result.structured_content is not None and result.structured_content["killed"] == ending.value


def test_the_text_of_a_result_is_no_longer_than_one_of_its_parts_may_be() -> None:
    outcome = CallOutcome("o" * 1000, "e" * 1000, "r" * 1000, "t" * 1000)
    (text,) = result_of(outcome, True, Limits(output=ByteSize(1000))).content
    assert text.type == "text"
    assert len(text.text) < 1400
    assert "the middle is left out" in text.text
