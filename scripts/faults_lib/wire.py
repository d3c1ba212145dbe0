"""Sockets: the judging upstream, the clients of weir, and lines that cut, hold or swallow.

Every instant of a receipt is the kernel's (SO_TIMESTAMPNS), so that this program's own delays do not show in it. The
kernel stamps by the real-time clock, which is Redis's clock too; `Run` checks that it was not stepped meanwhile.
"""

import asyncio
import contextlib
import errno
import json
import socket
import struct
import time

SO_TIMESTAMPNS = 35
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"


def now():
    return time.time()


def receive(sock):
    """Returns the bytes that lie ready and the instant at which the kernel got them; no bytes at the end."""
    try:
        data, notes, _, _ = sock.recvmsg(65536, 64)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EINTR):
            return None, 0.0
        return b"", now()
    for level, kind, value in notes:
        if (level, kind) == (socket.SOL_SOCKET, SO_TIMESTAMPNS):
            seconds, nanos = struct.unpack("qq", value[:16])
            return data, seconds + nanos / 1e9
    return data, now()


class Upstream:
    """The API behind weir: answers everything at once, and keeps the target and the instant of each request."""

    def __init__(self):
        self.seen = []
        self.rejects = None  # while set, the answer to all requests
        self.rejected = set()
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self.listener.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        self.listener.setblocking(False)
        self.url = "http://127.0.0.1:%d" % self.listener.getsockname()[1]
        self.connections = {}
        asyncio.get_running_loop().add_reader(self.listener, self._accept)

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self.listener.accept()
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.connections[sock] = b""
                asyncio.get_running_loop().add_reader(sock, self._read, sock)

    def _read(self, sock):
        data, at = receive(sock)
        if data is None:
            return
        if not data:
            return self._close(sock)
        data = self.connections[sock] + data
        while b"\r\n\r\n" in data:
            head, data = data.split(b"\r\n\r\n", 1)
            target = head.split(b" ", 2)[1].decode()
            self.seen.append((at, target))
            if self.rejects:
                self.rejected.add(target.rsplit("/", 1)[1])
            with contextlib.suppress(OSError):
                sock.send(self.rejects or OK)
        self.connections[sock] = data

    def _close(self, sock):
        asyncio.get_running_loop().remove_reader(sock)
        self.connections.pop(sock, None)
        sock.close()

    def close(self):
        for sock in [self.listener, *self.connections]:
            self._close(sock)


class Connection:
    """One connection to weir: a request at a time."""

    @classmethod
    async def open(cls, address):
        sock = socket.socket()
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        try:
            await asyncio.get_running_loop().sock_connect(sock, address)
        except BaseException:
            sock.close()
            raise
        self = cls()
        self.sock, self.buffer, self.done, self.used = sock, b"", None, False
        asyncio.get_running_loop().add_reader(sock, self._read)
        return self

    def ask(self, request):
        """Sends a request. Returns a future of (status, headers, body, instant); status 0 when the connection ends."""
        self.done = asyncio.get_running_loop().create_future()
        self.used = True
        try:
            self.sock.send(request)
        except OSError:
            self._finish((0, {}, b"", now()))
        return self.done

    def _finish(self, answer):
        done, self.done = self.done, None
        if answer[0] == 0 or answer[1].get("connection") == "close":
            self.close()
        if done and not done.done():
            done.set_result(answer)

    def _read(self):
        data, at = receive(self.sock)
        if data is None:
            return
        if not data:
            return self._finish((0, {}, self.buffer, at))
        self.buffer += data
        head, end, body = self.buffer.partition(b"\r\n\r\n")
        if not end:
            return
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if len(body) >= int(headers.get("content-length", 0)):
            self.buffer = b""
            self._finish((int(first.split(" ")[1]), headers, body, at))

    @property
    def is_open(self):
        return self.sock.fileno() >= 0

    def close(self):
        if self.is_open:
            asyncio.get_running_loop().remove_reader(self.sock)
            self.sock.close()


async def call(address, method, target, body=None, seconds=5):
    """Makes one call of the admin API. Returns the status and the body; 0 where nothing answers."""
    data = json.dumps(body).encode() if body is not None else b""
    head = f"{method} {target} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    head += f"content-length: {len(data)}\r\nconnection: close\r\n\r\n"
    try:
        async with asyncio.timeout(seconds):
            reader, writer = await asyncio.open_connection(*address)
            writer.write(head.encode() + data)
            answer = await reader.read()
            writer.close()
    except (OSError, TimeoutError):
        return 0, ""
    head, _, rest = answer.partition(b"\r\n\r\n")
    status = int(head.split(b" ", 2)[1]) if head else 0
    if b"transfer-encoding: chunked" in head.lower():
        text, rest = rest, b""
        while text:
            size, _, text = text.partition(b"\r\n")
            rest, text = rest + text[: int(size, 16)], text[int(size, 16) + 2 :]
    return status, rest.decode()


class Line:
    """A line between one replica and a server: `pass`, `cut` (closed and refused), `hold` (nothing moves until it
    passes again) or `swallow` (calls arrive, answers do not)."""

    async def start(self, port):
        self.target, self.mode, self.moved, self.writers, self.tasks = port, "pass", asyncio.Event(), set(), set()
        self.server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    def set(self, mode):
        self.mode = mode
        self.moved.set()
        self.moved = asyncio.Event()
        if mode == "cut":
            for writer in self.writers:
                writer.transport.abort()

    async def _carry(self, reader, writer):
        self.tasks.add(asyncio.current_task())
        there = None
        try:
            while self.mode == "hold":
                await self.moved.wait()
            if self.mode == "cut":
                return
            far_reader, there = await asyncio.open_connection("127.0.0.1", self.target)
            self.writers |= {writer, there}
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(reader, there, False))
                group.create_task(self._pump(far_reader, writer, True))
        except (OSError, ExceptionGroup, asyncio.CancelledError):
            pass
        finally:
            for end in filter(None, (writer, there)):
                self.writers.discard(end)
                end.transport.abort()
            self.tasks.discard(asyncio.current_task())

    async def _pump(self, reader, writer, is_answer):
        while data := await reader.read(65536):
            while self.mode == "hold":
                await self.moved.wait()
            if not (is_answer and self.mode == "swallow"):
                writer.write(data)
        raise ConnectionResetError

    def close(self):
        self.server.close()
        for task in self.tasks:
            task.cancel()
