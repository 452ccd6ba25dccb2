"""Programs that try to get out of the sandbox, or to harm from inside, by name.

Each prints a line ESCAPED where it succeeds. Words in braces are put in by the test: a secret file of the machine,
where it listens, one of its processes.
"""

from dataclasses import dataclass, field
from typing import Any

from eyas.sandbox.limits import Limits

__all__ = ["ESCAPES", "VARIANTS", "X86_ONLY", "Escape"]

MIB = 1 << 20
SMALL: dict[str, Any] = {"memory_bytes": 128 * MIB}
SHORT: dict[str, Any] = {"wall_s": 1.0}
LIBC = "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"
FAILED = "\nprint('ESCAPED' if result >= 0 else os.strerror(ctypes.get_errno()))"


@dataclass(frozen=True, kw_only=True)
class Escape:
    """`says` is one of the texts that the result must have. `limits` differ from the usual ones."""

    code: str
    says: tuple[str, ...]
    limits: dict[str, Any] = field(default_factory=dict)

    def limit(self) -> Limits:
        return Limits(**self.limits)

    def has_worked(self, output: str, text: str) -> bool:
        """Whether it has got out, or its result does not say what stopped it."""
        is_out = any(line.startswith("ESCAPED") for line in output.splitlines())
        return is_out or not any(said in text for said in self.says) or len(text) > self.limit().output_bytes + 100


def escape(code: str, *says: str, **limits: Any) -> Escape:
    return Escape(code=code, says=says, limits=limits)


def reads(path: str) -> Escape:
    return escape(f"print('ESCAPED', open({path!r}).read())", "FileNotFoundError")


def listed(path: str) -> Escape:
    return escape(f"import os\nprint('ESCAPED', os.listdir({path!r}))", "FileNotFoundError")


def connects(kind: str, address: str, *says: str) -> Escape:
    return escape(f"import socket\ns = socket.socket({kind})\ns.connect({address})\nprint('ESCAPED')", *says)


def calls(expression: str, *says: str) -> Escape:
    return escape(f"{LIBC}result = libc.{expression}{FAILED}", *says)


DENIED = "Operation not permitted"
NOT_WRITTEN = ("Read-only file system", "Permission denied", "only /tmp can be written")

FILES = {
    "reads the passwords": reads("/etc/passwd"),
    "reads a file of the user": reads("{secret}"),
    "reads the environment by proc": reads("/proc/self/environ"),
    "goes to the root of process 1": listed("/proc/1/root"),
    "opens the descriptors of process 1": listed("/proc/1/fd"),
    "reads the kernel's memory": reads("/proc/kcore"),
    "lists sys": listed("/sys"),
    "lists homes": listed("/home"),
    "finds a shell": reads("/bin/sh"),
    "goes up from the root": escape(
        "import os\nos.chdir('/')\nfor _ in range(50): os.chdir('..')\nprint('ESCAPED', open('etc/passwd').read())",
        "FileNotFoundError",
    ),
    "follows a symbolic link": escape(
        "import os\nos.symlink({secret!r}, 'link')\nprint('ESCAPED', open('link').read())", "FileNotFoundError"
    ),
    "leaves a symbolic link behind": escape("import os\nos.symlink('/etc/passwd', {trace!r})\nprint('made')", "made"),
    "makes a hard link to a library": escape(
        "import os\nos.link(os.__file__, '/tmp/own.py')\nprint('ESCAPED')", "Errno"
    ),
    "writes into the standard library": escape("import os\nopen(os.__file__, 'a')\nprint('ESCAPED')", *NOT_WRITTEN),
    "writes beside the root": escape("open('/new', 'w')\nprint('ESCAPED')", *NOT_WRITTEN),
    "mounts": calls("mount(b'none', b'/tmp', b'tmpfs', 0, None)", DENIED),
    "makes the root writable": calls("mount(b'none', b'/', None, 32, None)", DENIED),
    "changes the root": escape("import os\nos.mkdir('x')\nos.chroot('x')\nprint('ESCAPED')", DENIED),
    "makes a disk": escape(
        "import os, stat\nos.mknod('disk', stat.S_IFBLK | 0o600, os.makedev(8, 0))\nprint('ESCAPED')", DENIED
    ),
    "uses descriptors left open": escape(
        "import os\nfor fd in range(3, 64):\n    try: os.fstat(fd); print('ESCAPED', fd)\n    except OSError: pass\n"
        "print('none')",
        "none",
    ),
    "reads a key in the environment": escape("import os\nprint(sorted(os.environ))", "HOME"),
    "types into the terminal": escape(
        "import fcntl\nfor fd in range(3):\n    try: fcntl.ioctl(fd, 0x5412, b'x'); print('ESCAPED')\n"
        "    except OSError as error: print(error)",
        "Inappropriate ioctl",
    ),
    "opens the terminal": reads("/dev/tty"),
}
NETWORK = {
    "connects to the machine": connects("socket.AF_INET", "('127.0.0.1', {port})", "allows no network"),
    "connects by IPv6": connects("socket.AF_INET6", "('::1', {port})", "allows no network"),
    "connects by a local socket": connects("socket.AF_UNIX", "{socket!r}", "FileNotFoundError"),
    "connects by an abstract socket": connects("socket.AF_UNIX", "chr(0) + {abstract!r}", "ConnectionRefusedError"),
    "connects to the host of a virtual machine": connects("40", "(2, 22)", "allows no network"),
    "asks netlink": connects("16, socket.SOCK_RAW", "(0, 0)", "allows no network"),
    "sends raw packets": connects("socket.AF_INET, socket.SOCK_RAW, 1", "('127.0.0.1', 0)", "allows no network"),
    "asks for a name": escape("import socket\nprint('ESCAPED', socket.getaddrinfo('example.org', 80))", "gaierror"),
    "fetches a page": escape(
        "import urllib.request\nprint('ESCAPED', urllib.request.urlopen('http://127.0.0.1:{port}').read())", "URLError"
    ),
}
PROCESSES = {
    "fork bomb": escape(
        "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
        "timed out after 2 s", "of CPU time", wall_s=2.0,
    ),
    "fork bomb that reports": escape(
        "import os, time\nn = 0\nwhile n < 500:\n    if os.fork() == 0: time.sleep(60)\n    n += 1\nprint('ESCAPED')",
        "the limit is 32 processes",
    ),
    "threads without end": escape(
        "import threading, time\nfor _ in range(500):\n"
        "    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\nprint('ESCAPED')",
        "the limit is 32 processes",
    ),
    "daemon that outlives": escape(
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
        "        while True: time.sleep(0.05)\n    os._exit(0)\nos.wait()\nprint('left')",
        "left",
    ),
    "kills all": escape("import os\ntry: os.kill(-1, 9)\nexcept OSError: pass\nprint('done')", "done"),
    "kills process 1": escape("import os\nos.kill(1, 9)\nprint('done')", "done", DENIED),
    "kills a process outside": escape("import os\nos.kill({pid}, 9)\nprint('ESCAPED')", "ProcessLookupError"),
    "takes no signal": escape(
        "import signal, time\nfor number in (1, 2, 3, 15): signal.signal(number, signal.SIG_IGN)\n"
        "while True: time.sleep(1)",
        "timed out after 1 s", **SHORT,
    ),
    "stops itself": escape("import os\nos.kill(os.getpid(), 19)", "timed out after 1 s", **SHORT),
    "sleeps": escape("import time\ntime.sleep(1e6)", "timed out after 1 s", **SHORT),
    "computes without end": escape(
        "import signal\nsignal.signal(24, signal.SIG_IGN)\nwhile True: pass", "used more than 1 s of CPU time",
        cpu_s=1, wall_s=60.0,
    ),
    "raises its limits": escape(
        "import resource as r\nfor name in (r.RLIMIT_NPROC, r.RLIMIT_AS, r.RLIMIT_CPU, r.RLIMIT_NOFILE):\n"
        "    try: r.setrlimit(name, (r.RLIM_INFINITY, r.RLIM_INFINITY)); print('ESCAPED')\n"
        "    except (ValueError, OSError) as error: print(error)",
        "not allowed to raise maximum limit",
    ),
    "becomes root": escape("import os\nos.setuid(0)\nprint('ESCAPED')", "PermissionError", "Invalid argument"),
    "runs su": escape("import subprocess\nsubprocess.run(['/bin/su'])\nprint('ESCAPED')", "FileNotFoundError"),
    "enters a new user namespace": calls("unshare(0x10000000)", DENIED),
    "clones into a new namespace": calls("syscall({clone}, 0x10000000 | 17, 0, 0, 0, 0)", DENIED),
    "clones with hidden flags": calls("syscall(435, 0, 0)", "Function not implemented"),
    "traces another": calls("ptrace(16, 1, 0, 0)", DENIED),
    "reads another's memory": calls("process_vm_readv(1, 0, 0, 0, 0, 0)", DENIED),
    "crashes": escape("import ctypes\nctypes.string_at(0)", "killed by SIGSEGV"),
    "aborts": escape("import os\nos.abort()", "killed by SIGABRT"),
    "leaves in silence": escape("raise SystemExit(3)", "exit status 3, and nothing was printed"),
}  # fmt: skip
MEMORY = {
    "takes a terabyte": escape("x = bytearray(1 << 40)\nprint('ESCAPED')", "the limit is 512 MiB of memory"),
    "takes more and more": escape(
        "x = []\nwhile True: x.append(b'x' * (8 << 20))", "the limit is 128 MiB", "used more than 128 MiB", **SMALL
    ),
    "takes it with many": escape(
        "import os, time\nfor _ in range(6):\n    if os.fork() == 0:\n        x = os.urandom(1) * (60 << 20)\n"
        "        time.sleep(60)\ntime.sleep(60)",
        "used more than 128 MiB of memory", **SMALL,
    ),
    "takes memory without a process": escape("import os\nos.memfd_create('x')\nprint('ESCAPED')", DENIED),
    "takes shared memory": calls("shmget(0, 1 << 20, 0o1600)", DENIED),
    "takes memory of the device": escape("open('/dev/shm/x', 'w')\nprint('ESCAPED')", "FileNotFoundError"),
    "fills the folder": escape(
        "for n in range(100): open(f'{{n}}', 'wb').write(bytes(1 << 20))\nprint('ESCAPED')",
        "the limit is 8 MiB and 4096 files in /tmp", scratch_bytes=8 * MIB,
    ),
    "makes files without end": escape(
        "n = 0\nwhile True:\n    open(f'{{n}}', 'w').close()\n    n += 1",
        "made more than 4096", "and 4096 files in /tmp",
    ),
    "makes one large file": escape(
        "f = open('x', 'wb')\nwhile True: f.write(bytes(1 << 20))", "the limit is 2 MiB a file", file_bytes=2 * MIB
    ),
    "opens files without end": escape("x = []\nwhile True: x.append(open('/dev/null'))", "the limit is 64 open files"),
    "recurses without end": escape(
        "import sys\nsys.setrecursionlimit(10**9)\ndef f(): return f()\nf()",
        "killed by SIGSEGV", "MiB of memory", "RecursionError", "timed out after 3 s", wall_s=3.0,
    ),
}  # fmt: skip
OUTPUT = {
    "prints without end": escape("while True: print('x' * 1000)", "printed more than 16,384 bytes"),
    "prints errors without end": escape(
        "import sys\nwhile True: sys.stderr.write('x')", "printed more than 16,384 bytes"
    ),
    "prints much at once": escape("print('x' * (64 << 20))", "printed more than 16,384 bytes"),
    "prints no text": escape("import sys\nsys.stdout.buffer.write(bytes(range(256)))", "\ufffd"),
    "closes its output": escape(
        "import os, time\nos.close(1)\nos.close(2)\ntime.sleep(60)", "timed out after 1 s", **SHORT
    ),
    "prints nothing": escape("1 + 1", "nothing was printed; use print()"),
    "asks a question": escape("input()", "EOFError"),
    "is no program": escape("this is no program", "SyntaxError"),
    "has a zero byte": escape("print(1)\0", "null byte", "1\n"),
    "is half a surrogate": escape("print('\ud800')", "SyntaxError", "UnicodeDecodeError"),
    "is too long": escape("#" * (300 << 10), "the program has more than 262,144 bytes"),
}
X86_ONLY = {
    "calls in 32 bits": escape(
        "import ctypes, mmap\nm = mmap.mmap(-1, 4096, prot=7)\nm.write(bytes.fromhex('b814000000cd80c3'))\n"
        "print('ESCAPED', ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))())",
        "killed by SIGSYS",
    ),
    "calls in x32": calls("syscall(0x40000000 | 39)", DENIED),
}
ESCAPES = FILES | NETWORK | PROCESSES | MEMORY | OUTPUT | X86_ONLY
# Takes another's place in the default run: the same barrier, another way to it.
VARIANTS = {
    *("opens the descriptors of process 1", "reads the kernel's memory", "lists sys", "lists homes", "finds a shell"),
    *("makes the root writable", "writes beside the root", "opens the terminal", "connects by IPv6", "asks netlink"),
    *("sends raw packets", "fetches a page", "asks for a name", "stops itself", "sleeps", "runs su", "aborts"),
    *("reads another's memory", "takes memory of the device", "prints errors without end", "prints much at once"),
    *("closes its output", "is half a surrogate", "has a zero byte", "fork bomb", "recurses without end"),
}
