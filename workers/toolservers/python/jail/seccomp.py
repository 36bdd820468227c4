"""The filter of the sandbox's system calls: a BPF program for seccomp(2).

Listed calls are allowed, some of them with certain arguments alone: with others they get EPERM. All other calls get
ENOSYS, as on a kernel without them. Longhaul writes the program itself because libseccomp's bindings need a system
library that may be missing.
"""

from __future__ import annotations

import errno
import socket
import struct
import termios

from workers.toolservers.python.jail.syscalls import Machine, Syscalls, syscalls_of

# linux/bpf_common.h
_LOAD = 0x20  # BPF_LD | BPF_W | BPF_ABS
_IF_EQUAL = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_IF_AT_LEAST = 0x35  # BPF_JMP | BPF_JGE | BPF_K
_IF_ANY_BIT = 0x45  # BPF_JMP | BPF_JSET | BPF_K
_RETURN = 0x06  # BPF_RET | BPF_K

# linux/seccomp.h
_ALLOW = 0x7FFF0000
_KILL = 0x80000000
_EPERM = 0x00050000 | errno.EPERM
_ENOSYS = 0x00050000 | errno.ENOSYS

_NUMBER, _ARCH = 0, 4  # offsets in struct seccomp_data
_X32_BIT = 0x40000000

NEW_NAMESPACES = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET. Only clone3, which is refused, has NEWTIME."""
_TIOCLINUX = 0x541C
_F_SETPIPE_SZ = 1031
_BUFFER_OPTIONS = (7, 8, 32, 33)
"""SO_SNDBUF, SO_RCVBUF, and both with FORCE. A sandbox has Unix sockets alone: no other level concerns them."""

Instruction = tuple[int, int, int, int]
"""Code, jump if true, jump if false, operand."""


def filter_for(machine: Machine) -> bytes:
    """The program: an array of struct sock_filter."""
    calls = syscalls_of(machine)
    program = [
        (_LOAD, 0, 0, _ARCH),
        *_when(_IF_EQUAL, machine.audit_arch, otherwise=_KILL),
        (_LOAD, 0, 0, _NUMBER),
        *_when(_IF_AT_LEAST, _X32_BIT, then=_KILL),
        *_examined(calls),
        *(step for number in sorted(calls.allowed) for step in _when(_IF_EQUAL, number, then=_ALLOW)),
        (_RETURN, 0, 0, _ENOSYS),
    ]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


def _when(test: int, operand: int, *, then: int | None = None, otherwise: int | None = None) -> list[Instruction]:
    """Returns `then` if the test holds, or `otherwise` if it does not; in the other case the program goes on."""
    if then is not None:
        return [(test, 0, 1, operand), (_RETURN, 0, 0, then)]
    assert otherwise is not None
    return [(test, 1, 0, operand), (_RETURN, 0, 0, otherwise)]


def _examined(calls: Syscalls) -> list[Instruction]:
    number = calls.examined
    unix = _when(_IF_EQUAL, socket.AF_UNIX, otherwise=_EPERM)
    type_into_terminal = [
        step for request in (termios.TIOCSTI, _TIOCLINUX) for step in _when(_IF_EQUAL, request, then=_EPERM)
    ]
    larger_buffer = [step for option in _BUFFER_OPTIONS for step in _when(_IF_EQUAL, option, then=_EPERM)]
    return [
        *_where(number["setsockopt"], 2, larger_buffer),
        *_where(number["fcntl"], 1, _when(_IF_EQUAL, _F_SETPIPE_SZ, then=_EPERM)),
        *_where(number["clone"], 0, _when(_IF_ANY_BIT, NEW_NAMESPACES, then=_EPERM)),
        *_where(number["socket"], 0, unix),
        *_where(number["socketpair"], 0, unix),
        *_where(number["ioctl"], 1, type_into_terminal),
        *_where(
            number["prlimit64"], 0, _when(_IF_EQUAL, 0, otherwise=_EPERM)
        ),  # a process may set its own limits alone
    ]


def _where(number: int, argument: int, tests: list[Instruction]) -> list[Instruction]:
    """For one call: runs `tests` on the low half of an argument (all are ints), then allows the call."""
    body = [(_LOAD, 0, 0, 16 + 8 * argument), *tests, (_RETURN, 0, 0, _ALLOW)]
    return [(_IF_EQUAL, 0, len(body), number), *body]
