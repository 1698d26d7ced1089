"""The clock of all servers of a chaos run: a library for LD_PRELOAD adds a number of microseconds from a file."""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

_SOURCE = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *offset_us;

__attribute__((constructor)) static void begin(void) {
    const char *name = getenv("CHAOS_CLOCK");
    int file = name ? open(name, O_RDONLY) : -1;
    if (file < 0) return;
    void *page = mmap(0, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    if (page != MAP_FAILED) offset_us = page;
    close(file);
}
static int64_t now_us(struct timespec *real) {
    syscall(SYS_clock_gettime, CLOCK_REALTIME, real);
    return real->tv_sec * 1000000LL + real->tv_nsec / 1000 + (offset_us ? *offset_us : 0);
}
int clock_gettime(clockid_t clock, struct timespec *out) {
    if (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE) return syscall(SYS_clock_gettime, clock, out);
    int64_t us = now_us(out);
    out->tv_sec = us / 1000000;
    out->tv_nsec = us % 1000000 * 1000;
    return 0;
}
int gettimeofday(struct timeval *restrict out, void *restrict zone) {
    struct timespec real;
    int64_t us = now_us(&real);
    out->tv_sec = us / 1000000;
    out->tv_usec = us % 1000000;
    return 0;
}
time_t time(time_t *out) {
    struct timespec real;
    time_t now = now_us(&real) / 1000000;
    if (out) *out = now;
    return now;
}
"""


class ServerClock:
    """
    The offset of the clocks of all servers that are started inside of `shifting`.

    Without a C compiler `can_step` is False, and the servers have the clock of the machine.
    """

    def __init__(self, folder: Path) -> None:
        self.offset_s = 0.0
        self.backward_at_s: list[float] = []
        self._library = folder / "clock.so"
        self._file = folder / "offset"
        self._file.write_bytes(struct.pack("=q", 0))
        with self._file.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), 8)
        self.can_step = self._compile(folder)

    def _compile(self, folder: Path) -> bool:
        compiler = shutil.which("cc")
        if compiler is None:
            return False
        source = folder / "clock.c"
        source.write_text(_SOURCE, "utf-8")
        words = [compiler, "-shared", "-fPIC", "-o", str(self._library), str(source)]
        return subprocess.run(words, capture_output=True, check=False).returncode == 0

    @contextlib.contextmanager
    def shifting(self) -> Iterator[None]:
        """Give this clock to the processes that the block starts."""
        if not self.can_step:
            yield
            return
        os.environ |= {"LD_PRELOAD": str(self._library), "CHAOS_CLOCK": str(self._file)}
        try:
            yield
        finally:
            del os.environ["LD_PRELOAD"], os.environ["CHAOS_CLOCK"]

    def step(self, seconds: float) -> None:
        """Set the clock of all servers forward, or back."""
        self.offset_s += seconds
        self._page[:] = struct.pack("=q", round(self.offset_s * 1e6))
