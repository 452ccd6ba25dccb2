"""A program that looks like an engine from outside: an HTTP server that can be slow, crash, hang or answer garbage.

Standard library only; run as `python -SE fake_engine.py --port N ...`.
"""

import argparse
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ANSWERS = {
    "good": {"content": "Spring, summer, autumn and winter."},
    "garbage": {"content": "!" * 160},
    "empty": {"content": ""},
    "blind": {"content": "Spring, summer, autumn and winter."},
    "reasoning": {"content": None, "reasoning_content": "The person asks for four seasons. So I think of spring."},
}


def parsed():
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--name", default="server")
    parser.add_argument("--journal", help="file that gets a line of JSON at the start")
    parser.add_argument("--env", action="append", default=[], help="variables for the journal")
    parser.add_argument("--slow", type=float, default=0.0, help="seconds before it listens")
    parser.add_argument("--say", help="printed when it is up")
    parser.add_argument("--crash-file", help="exits with code 3 as soon as this file exists")
    parser.add_argument("--hang-file", help="does not answer while this file exists")
    parser.add_argument("--green-file", help="not ready until this file exists")
    parser.add_argument("--answer", default="good")
    parser.add_argument("--key-env", help="variable that holds the key that clients must have")
    parser.add_argument("--end-s", type=float, default=0.0, help="seconds that it takes to end after SIGTERM")
    parser.add_argument("--ignore-term", action="store_true")
    parser.add_argument("--children", action="store_true", help="one in a session of its own, one that hides its tag")
    parser.add_argument("--ballast", type=int, default=0, help="MiB that it holds when it is up")
    parser.add_argument("--peak", type=int, default=0, help="MiB that it holds before that, while it loads")
    parser.add_argument("--gpu-mib", type=int, default=0, help="MiB of the first GPU that it holds")
    parser.add_argument("--answer-s", type=float, default=0.0, help="seconds that an answer takes")
    parser.add_argument("--exit", type=int, help="end with this code at once")
    return parser.parse_args()


class Handler(BaseHTTPRequestHandler):
    args = None

    def do_GET(self):
        while self.args.hang_file and Path(self.args.hang_file).exists():
            time.sleep(0.02)
        is_green = not self.args.green_file or Path(self.args.green_file).exists()
        self.answer(200 if is_green else 503, {})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.args.key_env and self.headers["Authorization"] != f"Bearer {os.environ[self.args.key_env]}":
            self.answer(401, {"error": "no key"})
            return
        time.sleep(self.args.answer_s)
        while self.args.answer == "never":
            time.sleep(0.02)
        if self.path == "/v1/embeddings":
            vectors = [[float(text.count(letter)) for letter in "aeiou 0"] for text in body["input"]]
            if self.args.answer == "garbage":
                vectors = [[0.0] * 7 for _ in vectors]
            self.answer(200, {"data": [{"index": i, "embedding": vector} for i, vector in enumerate(vectors)]})
            return
        if self.args.answer == "blind" and isinstance(body["messages"][-1]["content"], list):
            self.answer(500, {"error": {"message": "image input is not supported"}})
            return
        message = {"role": "assistant", **ANSWERS[self.args.answer]}
        self.answer(200, {"model": body["model"], "choices": [{"message": message, "finish_reason": "stop"}]})

    def answer(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        pass


def write_journal(args):
    line = {
        "name": args.name,
        "pid": os.getpid(),
        "began": Path("/proc/self/stat").read_text().rsplit(") ", 1)[1].split()[19],
        "session": os.getsid(0),
        "cwd": str(Path.cwd()),
        "argv": sys.argv[1:],
        "env": {name: os.environ.get(name) for name in args.env},
        "net": str(Path("/proc/self/ns/net").readlink()),
    }
    with Path(args.journal).open("a") as file:
        file.write(json.dumps(line) + "\n")


def load(args):
    """Take memory bit by bit, up to the peak and back to the ballast, in the time that it is to take."""
    most, held, steps = max(args.peak, args.ballast), [], 20
    for step in range(steps):
        held += [b"x" * (1 << 20) for _ in range(most * (step + 1) // steps - most * step // steps)]
        time.sleep(args.slow / steps)
    del held[args.ballast :]
    return held


def hold_gpu(mib):
    """Allocate memory of the first GPU by the driver's own library; it is freed when the process ends."""
    cuda = ctypes.CDLL("libcuda.so.1")
    device, context, address = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    for error in (
        cuda.cuInit(0),
        cuda.cuDeviceGet(ctypes.byref(device), 0),
        cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device),
        cuda.cuCtxSetCurrent(context),
        cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(mib << 20)),
    ):
        if error:
            sys.exit(f"the GPU's driver says: error {error}")


def main():
    args = parsed()
    if args.ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    elif args.end_s:
        signal.signal(signal.SIGTERM, lambda *_: (time.sleep(args.end_s), os._exit(0)))
    if args.children:
        sleep = [sys.executable, "-SE", "-c", "import time; time.sleep(600)"]
        subprocess.Popen(sleep, start_new_session=True)
        subprocess.Popen(sleep, env={})
    if args.journal:
        write_journal(args)
    if args.exit is not None:
        print("ends at once", file=sys.stderr)
        sys.exit(args.exit)
    held = load(args)
    if args.gpu_mib:
        hold_gpu(args.gpu_mib)
    if args.port:
        Handler.args = args
        server = ThreadingHTTPServer((args.host, args.port), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
    if args.say:
        print(args.say, flush=True)
    while not (args.crash_file and Path(args.crash_file).exists()):
        time.sleep(0.02)
    print(f"crashes as asked, with {len(held)} MiB", file=sys.stderr, flush=True)
    os._exit(3)


main()
