"""How Longhaul's helper programs are started, and how they die with their parent.

It uses the standard library alone: launchers, supervisors and jailers start without site-packages, so that they
start fast and nothing that is installed can break them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent

# <linux/prctl.h>
PR_SET_PDEATHSIG = 1


def command_of(module: str) -> list[str]:
    """The command line that runs `main()` of `module`, one that imports this checkout and the standard library alone.

    The program ignores PYTHON* variables, its working directory and site-packages.
    """
    return [sys.executable, "-I", "-S", "-c", code_running(module)]


def code_running(module: str) -> str:
    """The code that Python runs for `main()` of a module of this checkout."""
    return f"import sys; sys.path.append({str(CHECKOUT)!r}); from {module} import main; main()"


def prctl(option: int, value: int) -> None:
    """Calls prctl(2) with one argument. Does nothing where the system is not Linux. Raises OSError."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"prctl {option}: {os.strerror(number)}")


@contextlib.contextmanager
def deaf_children() -> Iterator[None]:
    """What this thread starts in the block hears no SIGTERM or SIGINT, from its first moment on; nor do its children.

    Whoever stops a worker may signal all processes below it at once, as systemd does. They work for the worker until it
    ends them with SIGKILL.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def set_parent_death_signal(number: int = signal.SIGKILL) -> None:
    """Asks the kernel for signal `number` when the parent dies. A change of user or of rights clears the request.

    Linux means the *thread* that started this process: start it on a thread that lives as long as the parent.
    """
    prctl(PR_SET_PDEATHSIG, int(number))


def die_with_parent(parent: int, number: int = signal.SIGKILL, *, strict: bool = False) -> None:
    """`set_parent_death_signal`; ends this process with status 1 if `parent`, its process id, died before that.

    A container may forbid the request. That raises OSError only if `strict`: a program that also watches a pipe to its
    parent can do without.
    """
    with contextlib.suppress(*() if strict else (OSError,)):
        set_parent_death_signal(number)
    if os.getppid() != parent:
        os._exit(1)
