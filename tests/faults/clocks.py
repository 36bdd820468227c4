"""Clocks that jump: a small library shifts the wall clock of Python processes that it is loaded into (LD_PRELOAD).

libfaketime can do the same, but is on no package index; this is half a page of C, compiled at the start of a run.
Without a C compiler no clock jumps, and the report shows no such faults.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

COMPILERS = ("cc", "gcc", "clang")
VARIABLE = "LONGHAUL_TEST_CLOCK"
SOURCE = f"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static volatile const int64_t *seconds;
static int (*real)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {{
    const char *path = getenv("{VARIABLE}");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *mapped = mmap(NULL, sizeof *seconds, PROT_READ, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED) seconds = mapped;
    close(file);
}}

int clock_gettime(clockid_t id, struct timespec *at) {{
    if (!real) real = (int (*)(clockid_t, struct timespec *)) dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(id, at);
    if (result == 0 && seconds && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) at->tv_sec += *seconds;
    return result;
}}
"""


def build(folder: Path) -> Path | None:
    """Compiles the library into `folder`; None without a compiler."""
    if (found := next(filter(None, map(shutil.which, COMPILERS)), None)) is None:
        return None
    source, library = folder / "clock.c", folder / "clock.so"
    source.write_text(SOURCE, encoding="utf-8")
    subprocess.run([found, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return library


class Clock:
    """The wall clock of processes that run with `environment`."""

    def __init__(self, library: Path, file: Path) -> None:
        self._library = library
        self._file = file
        self.shift(0)

    @property
    def environment(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self._library), VARIABLE: str(self._file)}

    def shift(self, seconds: int) -> None:
        """Sets how far the clock is ahead, at once, in running processes too."""
        with self._file.open("r+b" if self._file.exists() else "w+b") as file:  # the same file: it is mapped
            file.write(struct.pack("q", seconds))
