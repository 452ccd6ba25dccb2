"""A connection that sends bytes as they are."""

import json
import socket

import httpx

GOOD = json.dumps({"messages": [{"role": "user", "content": "Hi"}]}).encode()
POST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


class Raw:
    """A connection that sends bytes as they are."""

    def __init__(self, server):
        self.socket = socket.create_connection(httpx.URL(server.url).netloc.decode().split(":"), timeout=10)

    def send(self, *parts: bytes) -> "Raw":
        self.socket.sendall(b"".join(parts))
        return self

    def answer(self) -> tuple[int, dict]:
        """Status and JSON body, once the server has closed or said all; no status if it just closed."""
        data = b""
        try:
            while part := self.socket.recv(1 << 16):
                data += part
                head, _, body = data.partition(b"\r\n\r\n")
                if b"content-length: %d\r\n" % len(body) in head.lower() + b"\r\n":
                    break
        except ConnectionResetError:
            pass
        self.head = head if data else b""
        if not data:
            return 0, {}
        return int(data.split()[1]), json.loads(data.partition(b"\r\n\r\n")[2])

    def is_closed(self) -> bool:
        self.socket.settimeout(0.01)
        try:
            return self.socket.recv(1 << 16) == b""
        except TimeoutError:
            return False
        except ConnectionResetError:
            return True


def chunked(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
