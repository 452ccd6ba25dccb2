"""The system calls that a program in the sandbox may not make, as a filter for the kernel (classic BPF).

The format is that of linux/filter.h and linux/seccomp.h. Namespaces and limits already keep a program inside; this
closes what they leave: sockets that no network namespace holds (vsock), memory that no limit counts, and the parts of
the kernel in which most ways out were found. The choice is our own; Docker's and Flatpak's lists were compared.
"""

from __future__ import annotations

import errno
import struct

from eyas.base.errors import UserError

__all__ = ["DENIED", "filter_for"]

X86, ARM = "x86_64", "aarch64"
ARCHITECTURES = {X86: 0xC000003E, ARM: 0xC00000B7}  # AUDIT_ARCH_* of linux/audit.h

# Numbers on x86_64 and aarch64 (asm/unistd_64.h, asm-generic/unistd.h); None where there is no such call.
DENIED: dict[str, tuple[int, int | None]] = {
    # file systems and namespaces
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "open_tree": (428, 428),
    "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432),
    "fspick": (433, 433), "mount_setattr": (442, 442), "unshare": (272, 97), "setns": (308, 268),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "fanotify_init": (300, 262),
    "quotactl": (179, 60), "quotactl_fd": (443, 443), "swapon": (167, 224), "swapoff": (168, 225), "acct": (163, 89),
    # other processes
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_getfd": (438, 438), "process_madvise": (440, 440), "move_pages": (279, 239), "migrate_pages": (256, 238),
    # parts of the kernel that no program of ours needs
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "keyctl": (250, 219), "add_key": (248, 217),
    "request_key": (249, 218), "vmsplice": (278, 75), "remap_file_pages": (216, 234), "personality": (135, 92),
    "modify_ldt": (154, None), "uselib": (134, None), "iopl": (172, None), "ioperm": (173, None),
    "mbind": (237, 235), "set_mempolicy": (238, 237), "lookup_dcookie": (212, 18), "nfsservctl": (180, 42),
    # memory that belongs to no process and counts in no limit
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194), "shmat": (30, 196),
    "semget": (64, 190), "msgget": (68, 186), "mq_open": (240, 180),
    # the machine
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106), "kexec_load": (246, 104),
    "kexec_file_load": (320, 294), "reboot": (169, 142), "settimeofday": (164, 170), "clock_settime": (227, 112),
    "adjtimex": (159, 171), "clock_adjtime": (305, 266), "sethostname": (170, 161), "setdomainname": (171, 162),
    "syslog": (103, 116), "vhangup": (153, 58),
}  # fmt: skip
CLONE = (56, 220)
CLONE3 = (435, 435)  # its flags lie in memory, where a filter cannot look; the C library falls back to clone
SOCKETS = ((41, 198), (53, 199))  # socket, socketpair
NEW_NAMESPACES = 0x7E020000  # CLONE_NEW*
AF_UNIX = 1
X32 = 0x40000000  # calls of x86_64's third ABI

LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # BPF_LD+W+ABS, BPF_JMP+*+K, BPF_RET+K
NUMBER, ARCHITECTURE, FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data; low half of the argument
ALLOW, KILL, FAIL = 0x7FFF0000, 0x80000000, 0x00050000  # SECCOMP_RET_*


def filter_for(machine: str) -> bytes:
    """Return the filter for a machine by its name in `uname`, as struct sock_filter. Raises UserError for others."""
    if machine not in ARCHITECTURES:
        raise UserError(f"there is no Python sandbox for {machine} machines, only for {' and '.join(ARCHITECTURES)}")
    column = list(ARCHITECTURES).index(machine)
    refuse, unknown = FAIL | errno.EPERM, FAIL | errno.ENOSYS
    program = [(LOAD, 0, 0, ARCHITECTURE), (EQUAL, 1, 0, ARCHITECTURES[machine]), (RETURN, 0, 0, KILL)]
    program += [(LOAD, 0, 0, NUMBER), (AT_LEAST, 0, 1, X32), (RETURN, 0, 0, refuse)]
    for numbers in DENIED.values():
        if numbers[column] is not None:
            program += _when(numbers[column], [(RETURN, 0, 0, refuse)])
    program += _when(CLONE3[column], [(RETURN, 0, 0, unknown)])
    allow = (RETURN, 0, 0, ALLOW)
    has_flags = [(LOAD, 0, 0, FIRST_ARGUMENT), (ANY_BIT, 0, 1, NEW_NAMESPACES), (RETURN, 0, 0, refuse), allow]
    program += _when(CLONE[column], has_flags)
    for numbers in SOCKETS:
        is_local = [(LOAD, 0, 0, FIRST_ARGUMENT), (EQUAL, 1, 0, AF_UNIX), (RETURN, 0, 0, refuse), allow]
        program += _when(numbers[column], is_local)
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in [*program, allow])


def _when(number: int | None, then: list[tuple[int, int, int, int]]) -> list[tuple[int, int, int, int]]:
    """Return instructions that do `then`, which returns, for one system call, and go on otherwise."""
    assert number is not None
    return [(EQUAL, 0, len(then), number), *then]
