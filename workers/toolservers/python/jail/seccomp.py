"""The filter of the sandbox's system calls: a BPF program for seccomp(2), and the calls that it allows.

Listed calls are allowed, some of them with certain arguments alone: with others they get EPERM. All other calls get
ENOSYS, as on a kernel without them. Longhaul writes the program itself because libseccomp's bindings need a system
library that may be missing. The numbers of calls on x86_64 and aarch64 are from asm/unistd_64.h and
asm-generic/unistd.h of Linux 6.1, written `name:x86_64:aarch64`. An empty number means that the machine does not have
the call."""

from __future__ import annotations

import errno
import socket
import struct
import termios
from collections.abc import Mapping
from enum import Enum

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
    allowed = numbers(ALLOWED, machine).values()
    program = [
        (_LOAD, 0, 0, _ARCH),
        *_when(_IF_EQUAL, machine.audit_arch, otherwise=_KILL),
        (_LOAD, 0, 0, _NUMBER),
        *_when(_IF_AT_LEAST, _X32_BIT, then=_KILL),
        *_examined(numbers(EXAMINED, machine)),
        *(step for number in sorted(allowed) for step in _when(_IF_EQUAL, number, then=_ALLOW)),
        (_RETURN, 0, 0, _ENOSYS),
    ]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


def _when(test: int, operand: int, *, then: int | None = None, otherwise: int | None = None) -> list[Instruction]:
    """Returns `then` if the test holds, or `otherwise` if it does not; in the other case the program goes on."""
    if then is not None:
        return [(test, 0, 1, operand), (_RETURN, 0, 0, then)]
    assert otherwise is not None
    return [(test, 1, 0, operand), (_RETURN, 0, 0, otherwise)]


def _examined(number: Mapping[str, int]) -> list[Instruction]:
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


class Machine(Enum):
    """A value of `platform.machine()`."""

    X86_64 = "x86_64"
    AARCH64 = "aarch64"

    @property
    def audit_arch(self) -> int:
        """The machine's number in seccomp (linux/audit.h)."""
        return {Machine.X86_64: 0xC000003E, Machine.AARCH64: 0xC00000B7}[self]


def numbers(table: str, machine: Machine) -> dict[str, int]:
    """The numbers of a table's calls on this machine, by name."""
    column = 1 + list(Machine).index(machine)
    rows = (entry.split(":") for entry in table.split())
    return {row[0]: int(row[column]) for row in rows if row[column]}


EXAMINED = "clone:56:220 fcntl:72:25 ioctl:16:29 prlimit64:302:261 setsockopt:54:208 socket:41:198 socketpair:53:199"
"""Calls that are allowed with some arguments alone."""

ALLOWED = """
read:0:63 write:1:64 open:2: close:3:57 stat:4: fstat:5:80 lstat:6: poll:7: lseek:8:62 mmap:9:222 mprotect:10:226
munmap:11:215 brk:12:214 rt_sigaction:13:134 rt_sigprocmask:14:135 rt_sigreturn:15:139 pread64:17:67 pwrite64:18:68
readv:19:65 writev:20:66 access:21: pipe:22: select:23: sched_yield:24:124 mremap:25:216 msync:26:227 mincore:27:232
madvise:28:233 dup:32:23 dup2:33: pause:34: nanosleep:35:101 getitimer:36:102 alarm:37: setitimer:38:103 getpid:39:172
sendfile:40:71 connect:42:203 accept:43:202 sendto:44:206 recvfrom:45:207 sendmsg:46:211 recvmsg:47:212
shutdown:48:210 bind:49:200 listen:50:201 getsockname:51:204 getpeername:52:205 getsockopt:55:209
fork:57: vfork:58: execve:59:221 exit:60:93 wait4:61:260 kill:62:129 uname:63:160 flock:73:32 fsync:74:82
fdatasync:75:83 truncate:76:45 ftruncate:77:46 getdents:78: getcwd:79:17 chdir:80:49 fchdir:81:50 rename:82: mkdir:83:
rmdir:84: creat:85: link:86: unlink:87: symlink:88: readlink:89: chmod:90: fchmod:91:52 chown:92: fchown:93:55
lchown:94: umask:95:166 gettimeofday:96:169 getrlimit:97:163 getrusage:98:165 sysinfo:99:179 times:100:153
getuid:102:174 getgid:104:176 geteuid:107:175 getegid:108:177 setpgid:109:154 getppid:110:173 getpgrp:111:
setsid:112:157 getgroups:115:158 getresuid:118:148 getresgid:120:150 getpgid:121:155 getsid:124:156 capget:125:90
rt_sigpending:127:136 rt_sigtimedwait:128:137 rt_sigqueueinfo:129:138 rt_sigsuspend:130:133 sigaltstack:131:132
utime:132: statfs:137:43 fstatfs:138:44 getpriority:140:141 sched_getparam:143:121 sched_getscheduler:145:120
sched_get_priority_max:146:125 sched_get_priority_min:147:126 mlock:149:228 munlock:150:229 prctl:157:167
arch_prctl:158: setrlimit:160:164 gettid:186:178 getxattr:191:8 lgetxattr:192:9 fgetxattr:193:10 listxattr:194:11
llistxattr:195:12 flistxattr:196:13 tkill:200:130 time:201: futex:202:98 sched_getaffinity:204:123 epoll_create:213:
getdents64:217:61 set_tid_address:218:96 restart_syscall:219:128 fadvise64:221:223 timer_create:222:107
timer_settime:223:110 timer_gettime:224:108 timer_getoverrun:225:109 timer_delete:226:111 clock_gettime:228:113
clock_getres:229:114 clock_nanosleep:230:115 exit_group:231:94 epoll_wait:232: epoll_ctl:233:21 tgkill:234:131
utimes:235: waitid:247:95 openat:257:56 mkdirat:258:34 fchownat:260:54 futimesat:261: newfstatat:262:79
unlinkat:263:35 renameat:264:38 linkat:265:37 symlinkat:266:36 readlinkat:267:78 fchmodat:268:53 faccessat:269:48
pselect6:270:72 ppoll:271:73 set_robust_list:273:99 get_robust_list:274:100 splice:275:76 tee:276:77
sync_file_range:277:84 utimensat:280:88 epoll_pwait:281:22 signalfd:282: timerfd_create:283:85 eventfd:284:
fallocate:285:47 timerfd_settime:286:86 timerfd_gettime:287:87 accept4:288:242 signalfd4:289:74 eventfd2:290:19
epoll_create1:291:20 dup3:292:24 pipe2:293:59 preadv:295:69 pwritev:296:70 recvmmsg:299:243 sendmmsg:307:269
getcpu:309:168 renameat2:316:276 getrandom:318:278 execveat:322:281 membarrier:324:283 copy_file_range:326:285
preadv2:327:286 pwritev2:328:287 statx:332:291 rseq:334:293 pidfd_send_signal:424:424 pidfd_open:434:434
close_range:436:436 openat2:437:437 faccessat2:439:439 epoll_pwait2:441:441 futex_waitv:449:449
"""
