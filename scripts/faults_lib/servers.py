"""Real processes: redis-server, alone, under Sentinel and as a Cluster; and weir."""

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time

from .wire import call

PATIENCE = 40
PROGRAM = shutil.which("redis-server") or shutil.which("valkey-server")


def free_port(top=0):
    """Returns a port that is free, also the one `top` above it, which nodes of a Cluster use for each other."""
    while True:
        with socket.socket() as one, socket.socket() as two:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
            if not top:
                return port
            port = 10000 + port % 20000
            with contextlib.suppress(OSError):
                two.bind(("127.0.0.1", port + top))
                with socket.socket() as three:
                    three.bind(("127.0.0.1", port))
                return port


async def until(what, condition, seconds=PATIENCE):
    """Waits until the condition holds; returns its value."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(OSError, EOFError, TimeoutError, asyncio.IncompleteReadError, RedisError):
            if value := await condition():
                return value
        await asyncio.sleep(0.02)
    raise RuntimeError(f"not within {seconds} s: {what}")


class RedisError(Exception):
    """An error that Redis answers."""


class Process:
    """A child process with a directory of its own. Ended, and its directory removed, by `close`."""

    def __init__(self, name):
        self.directory = tempfile.mkdtemp(prefix=f"weir-faults-{name}-")
        self.log = os.path.join(self.directory, "log")
        self.child = None

    def spawn(self, arguments):
        with open(self.log, "ab") as log:
            self.child = subprocess.Popen(arguments, stdout=log, stderr=log, cwd=self.directory)

    def signal(self, number):
        if self.child.poll() is None:
            self.child.send_signal(number)

    def freeze(self, frozen=True):
        self.signal(signal.SIGSTOP if frozen else signal.SIGCONT)

    def kill(self):
        """Kills the process. Does not wait for its end, which `start` does: the clients go on meanwhile."""
        self.signal(signal.SIGKILL)

    async def ended(self):
        async def is_gone():
            return self.child is None or self.child.poll() is not None

        await until("the process has ended", is_gone)

    def close(self):
        if self.child:
            self.kill()
            self.child.wait()
        shutil.rmtree(self.directory, ignore_errors=True)


class Redis(Process):
    """A redis-server without persistence: killed, it comes back empty."""

    def __init__(self, port=None, arguments=()):
        super().__init__("redis")
        self.port, self.arguments, self.stream = port or free_port(), arguments, None

    async def start(self):
        await self.ended()
        conf = os.path.join(self.directory, "redis.conf")
        open(conf, "a").close()
        self.spawn([PROGRAM, conf, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
                    "--dir", self.directory, *self.arguments])
        await until("redis-server answers", lambda: self.command("PING"))
        return self

    async def command(self, *words):
        """Sends one command, by a connection that is kept."""
        for attempt in (1, 2):
            try:
                if self.stream is None:
                    self.stream = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 24)
                reader, writer = self.stream
                encoded = [str(word).encode() for word in words]
                writer.write(b"*%d\r\n" % len(encoded) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in encoded))
                return await self._answer(reader)
            except (OSError, asyncio.IncompleteReadError, EOFError):
                self.stream = None
                if attempt == 2:
                    raise

    async def _answer(self, reader):
        line = (await reader.readuntil(b"\r\n"))[:-2]
        kind, rest = line[:1], line[1:]
        if kind == b"-":
            raise RedisError(rest.decode())
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return None if rest == b"-1" else (await reader.readexactly(int(rest) + 2))[:-2].decode("latin-1")
        if kind == b"*":
            return [await self._answer(reader) for _ in range(int(rest))]
        return rest.decode()

    async def info(self, section):
        text = await self.command("INFO", section)
        return dict(line.split(":", 1) for line in text.split("\r\n") if ":" in line)

    async def script_calls(self):
        stats = await self.info("commandstats")
        called = [stats.get(f"cmdstat_{name}", "calls=0,") for name in ("evalsha", "eval", "fcall")]
        return sum(int(re.match(r"calls=(\d+)", line)[1]) for line in called)


class Single:
    """One server."""

    def __init__(self):
        self.redis = Redis()

    async def start(self):
        await self.redis.start()
        return self

    def yaml(self, port=None):
        return f'url: "redis://127.0.0.1:{port or self.redis.port}"'

    async def primary(self):
        return self.redis

    async def flush(self):
        await self.redis.command("FLUSHALL")

    def close(self):
        self.redis.close()


class Sentinel:
    """A primary, its replica and three sentinels, with the sentinels' own default periods."""

    def __init__(self):
        self.servers = [Redis(arguments=("--repl-diskless-sync-delay", "0")) for _ in range(2)]
        self.sentinels = [Redis(arguments=("--sentinel",)) for _ in range(3)]

    async def start(self):
        for server in self.servers + self.sentinels:
            await server.start()
        port = self.servers[0].port
        await self.servers[1].command("REPLICAOF", "127.0.0.1", port)

        async def follows():
            return (await self.servers[1].info("replication")).get("master_link_status") == "up"

        await until("the replica follows", follows)
        for sentinel in self.sentinels:
            await sentinel.command("SENTINEL", "MONITOR", "weir", "127.0.0.1", port, "2")
            await sentinel.command("SENTINEL", "SET", "weir", "down-after-milliseconds", "1000")
            await sentinel.command("SENTINEL", "SET", "weir", "failover-timeout", "5000")
        await until("sentinels know each other and the replica", self._is_whole)
        return self

    async def _is_whole(self):
        for sentinel in self.sentinels:
            words = await sentinel.command("SENTINEL", "MASTER", "weir")
            fields = dict(zip(words[::2], words[1::2]))
            if (fields["num-slaves"], fields["num-other-sentinels"], fields["flags"]) != ("1", "2", "master"):
                return False
        return True

    def yaml(self, port=None):
        nodes = ", ".join(f'"redis://127.0.0.1:{sentinel.port}/"' for sentinel in self.sentinels)
        return f"sentinel: {{nodes: [{nodes}], master: weir}}"

    async def primary(self):
        _, port = await self.sentinels[0].command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "weir")
        return next(server for server in self.servers if server.port == int(port))

    async def successor(self, old):
        """Waits until another server is the primary; returns it."""

        async def other():
            server = await self.primary()
            if server is not old and (await server.info("replication"))["role"] == "master":
                return server

        return await until("another primary", other)

    async def flush(self):
        await (await self.primary()).command("FLUSHALL")

    def close(self):
        for server in self.servers + self.sentinels:
            server.close()


class Cluster:
    """Three primaries, each with a replica. `primary` is the one of the group of the limiter `l`."""

    def __init__(self):
        arguments = ("--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf", "--cluster-node-timeout",
                     "1000", "--cluster-require-full-coverage", "no", "--repl-diskless-sync-delay", "0")
        self.servers = [Redis(free_port(10000), arguments) for _ in range(6)]

    async def start(self):
        for server in self.servers:
            await server.start()
        for epoch, node in enumerate(self.servers, 1):
            await node.command("CLUSTER", "SET-CONFIG-EPOCH", epoch)
        for node in self.servers[1:]:
            await self.servers[0].command("CLUSTER", "MEET", "127.0.0.1", node.port)
        bounds = [0, 5461, 10923, 16384]
        for index, node in enumerate(self.servers[:3]):
            await node.command("CLUSTER", "ADDSLOTS", *range(bounds[index], bounds[index + 1]))

        async def know_each_other():
            for node in self.servers:
                lines = (await node.command("CLUSTER", "NODES")).strip().split("\n")
                if len(lines) != 6 or any("handshake" in line or "disconnected" in line for line in lines):
                    return False
            return True

        await until("nodes know each other", know_each_other)
        for index, node in enumerate(self.servers[3:]):
            await node.command("CLUSTER", "REPLICATE", await self.servers[index].command("CLUSTER", "MYID"))

        async def is_whole():
            for node in self.servers:
                info = await node.command("CLUSTER", "INFO")
                lines = (await node.command("CLUSTER", "NODES")).strip().split("\n")
                if "cluster_state:ok" not in info or sum("slave" in line for line in lines) != 3:
                    return False
            for node in self.servers[3:]:
                if (await node.info("replication")).get("master_link_status") != "up":
                    return False
            return True

        await until("a whole cluster", is_whole)
        self.slot = await self.servers[0].command("CLUSTER", "KEYSLOT", "{l}")
        return self

    def yaml(self, port=None):
        nodes = ", ".join(f'"redis://127.0.0.1:{node.port}"' for node in self.servers[:3])
        return f"cluster: [{nodes}]"

    async def primary(self, but=None):
        """Returns the primary of `l`, as the nodes other than `but` say."""

        async def owner():
            for node in (node for node in self.servers if node is not but and node.child.poll() is None):
                for low, high, (_, port, *_), *_ in await node.command("CLUSTER", "SLOTS"):
                    if low <= self.slot <= high and (but is None or port != but.port):
                        return next(server for server in self.servers if server.port == port)

        return await until("a primary", owner)

    async def successor(self, old):
        return await self.primary(but=old)

    async def flush(self):
        for node in self.servers:
            if (await node.info("replication"))["role"] == "master":
                await node.command("FLUSHALL")

    def close(self):
        for server in self.servers:
            server.close()


STORES = {"single": Single, "sentinel": Sentinel, "cluster": Cluster}


class Weir(Process):
    """One replica, with a configuration file of its own."""

    def __init__(self, program, config):
        super().__init__("weir")
        self.program, self.path = program, os.path.join(self.directory, "weir.yaml")
        self.excused = []  # from when to when its requests are not judged: it was dead or stopped
        self.left = None  # since when it takes no connection: SIGTERM was sent
        self._write(config)

    def _write(self, config):
        with open(self.path + ".new", "w") as file:
            file.write("listen: 127.0.0.1:0\nadmin: {listen: 127.0.0.1:0}\nlog: {access: false}\n" + config)
        os.replace(self.path + ".new", self.path)

    async def start(self):
        self.spawn([self.program, "serve", "--config", self.path])

        async def listens():
            if self.child.poll() is not None:
                raise SystemExit(f"weir ended:\n{open(self.log).read()}")
            found = {}
            for line in open(self.log):
                with contextlib.suppress(ValueError):
                    said = json.loads(line)
                    found[said.get("message") or said.get("fields", {}).get("message")] = said
            if "listening" in found and "admin listening" in found:
                return [address_of(found[name]) for name in ("listening", "admin listening")]

        self.address, self.admin = await until("weir listens", listens)
        return self

    async def reload(self, config):
        self._write(config)
        status, text = await call(self.admin, "POST", "/api/reload")
        if status not in (0, 200):
            raise RuntimeError(f"reload: {status} {text}")

    async def metrics(self, name, label=""):
        """Returns the sum of a metric over its series, or over those with a label; `None` where nothing answers."""
        status, text = await call(self.admin, "GET", "/metrics")
        labels = rf"\{{[^}}]*{label}[^}}]*\}}" + ("" if label else "|")
        values = re.findall(rf"^{name}(?:{labels}) ([0-9.e+-]+)$", text, re.M)
        return sum(map(float, values)) if status == 200 else None


def address_of(said):
    host, port = (said.get("address") or said["fields"]["address"]).rsplit(":", 1)
    return host, int(port)
