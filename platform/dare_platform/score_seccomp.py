"""What the kernel does for a score container: its programs are kept apart by namespaces, which the default refuses.

Everything that is not named here fails with EPERM. Against the engine's default, a process may make namespaces and
mount in them (`NAMESPACES`), which without capabilities works only inside a user namespace of its own. Refused are
other processes' memory, keys, clocks, modules, tracing, asynchronous rings, the newer mount calls, and what needs a
capability that no container of ours has. The programs themselves are held by a second filter, `dare.sandbox.kernel`.
"""

from __future__ import annotations

import json

NAMESPACES = ("clone", "mount", "pivot_root", "umount2", "unshare")

_FILES = """access chdir chmod chown close close_range copy_file_range creat dup dup2 dup3 faccessat faccessat2
fadvise64 fallocate fchdir fchmod fchmodat fchmodat2 fchown fchownat fcntl fdatasync fgetxattr flistxattr flock
fremovexattr fsetxattr fstat fstatfs fsync ftruncate futimesat getcwd getdents getdents64 getxattr inotify_add_watch
inotify_init inotify_init1 inotify_rm_watch ioctl lchown lgetxattr link linkat listxattr llistxattr lremovexattr
lseek lsetxattr lstat mkdir mkdirat mknod mknodat newfstatat open openat openat2 pipe pipe2 pread64 preadv preadv2
pwrite64 pwritev pwritev2 read readahead readlink readlinkat readv removexattr rename renameat renameat2 rmdir
sendfile setxattr splice stat statfs statx symlink symlinkat sync sync_file_range sync_file_range2 syncfs tee
truncate umask unlink unlinkat utime utimensat utimes vmsplice write writev"""
_MEMORY = """brk madvise membarrier memfd_create mincore mlock mlock2 mlockall mmap mprotect mremap msync munlock
munlockall munmap pkey_alloc pkey_free pkey_mprotect remap_file_pages shmat shmctl shmdt shmget"""
_PROCESSES = """arch_prctl capget capset execve execveat exit exit_group fork futex futex_waitv get_robust_list
get_thread_area getcpu getegid geteuid getgid getgroups getpgid getpgrp getpid getppid getpriority getresgid
getresuid getrlimit getrusage getsid gettid getuid ioprio_get ioprio_set kill landlock_add_rule
landlock_create_ruleset landlock_restrict_self pidfd_open pidfd_send_signal prctl prlimit64 restart_syscall rseq
sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getattr sched_getparam sched_getscheduler
sched_rr_get_interval sched_setaffinity sched_setattr sched_setparam sched_setscheduler sched_yield seccomp
set_robust_list set_thread_area set_tid_address setfsgid setfsuid setgid setgroups setpgid setpriority setregid
setresgid setresuid setreuid setrlimit setsid setuid sysinfo tgkill times tkill uname vfork wait4 waitid"""
_SIGNALS_AND_TIME = """alarm clock_getres clock_gettime clock_nanosleep eventfd eventfd2 getitimer gettimeofday
nanosleep pause rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait
rt_tgsigqueueinfo setitimer sigaltstack signalfd signalfd4 time timer_create timer_delete timer_getoverrun
timer_gettime timer_settime timerfd_create timerfd_gettime timerfd_settime"""
_MESSAGES = """accept accept4 bind connect epoll_create epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 epoll_wait
getpeername getrandom getsockname getsockopt io_cancel io_destroy io_getevents io_setup io_submit listen
mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedsend mq_unlink msgctl msgget msgrcv msgsnd poll ppoll
pselect6 recvfrom recvmmsg recvmsg select semctl semget semop semtimedop sendmmsg sendmsg sendto setsockopt shutdown
socketpair"""

ALLOWED = tuple(sorted(" ".join((_FILES, _MEMORY, _PROCESSES, _SIGNALS_AND_TIME, _MESSAGES)).split()))
_LAST_FAMILY = 16
"""AF_NETLINK. Those of wires and virtual machines come behind it."""
_ENOSYS = 38


def score_seccomp() -> str:
    """The profile in the engine's own form."""
    return json.dumps(
        {
            "defaultAction": "SCMP_ACT_ERRNO",
            "syscalls": [
                {"names": [*ALLOWED, *NAMESPACES], "action": "SCMP_ACT_ALLOW"},
                {
                    "names": ["socket"],
                    "action": "SCMP_ACT_ALLOW",
                    "args": [{"index": 0, "value": _LAST_FAMILY, "op": "SCMP_CMP_LE"}],
                },
                # its flags lie in memory, where no filter sees them; the C library then takes `clone`
                {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": _ENOSYS},
            ],
        },
        separators=(",", ":"),
    )
