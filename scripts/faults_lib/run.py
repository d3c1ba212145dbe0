"""One run of a case: processes, load, events, and the verdict."""

import asyncio
import random
import time
from collections import Counter

from . import judge
from .servers import STORES, Weir, until
from .wire import Connection, Line, Upstream, now

LEASE = 0.5
# How much longer than its bound a request may wait.
TOLERANCE = 0.1
# A client as late as this makes no judgement of a wait.
CLIENT_LATE = 0.05


class Limit:
    """A limit as written (`40/2s`), or with an algorithm."""

    def __init__(self, text, algorithm="sliding_window"):
        rate, per = text.split("/")
        self.rate, self.text, self.algorithm = int(rate), text, algorithm
        self.per = float(per[:-1]) * {"s": 1, "m": 60, "h": 3600}[per[-1]]

    def yaml(self):
        per = self.text.split("/")[1]
        return f"{{rate: {self.rate}, per: {per}, algorithm: {self.algorithm}}}"


class Ask:
    """One request: sent, answered, received by the upstream."""

    __slots__ = ("number", "weir", "sent", "answered", "status", "code", "retry", "path", "stamp", "bound", "wait")

    def __init__(self, number, weir, path, bound):
        self.number, self.weir, self.path, self.bound = number, weir, path, bound
        self.sent = self.answered = self.stamp = self.wait = None
        self.status, self.code, self.retry = None, "", None


class Run:
    """The environment of a case. `check` and `fail` make the verdict; `figures` are printed."""

    def __init__(self, options, seed):
        self.options, self.dice = options, random.Random(seed)
        self.figures, self.failures, self.noise, self.events = {}, [], [], []
        self.asks, self.idle_connections, self.lines, self.replicas, self.started = [], {}, [], [], []
        self.store, self.tasks, self.late, self.may_refuse = None, [], [], True
        self.loaded = None

    async def start(self, limits="40/2s", policy="local", queue="{timeout: 3s, max_waiting: 1000}", timeout=3.0,
                    store="single", has_store=True, further="", lines=False, replicas=3, limiters="",
                    route="limiter: l", extra_routes=""):
        """Starts store, upstream and replicas, and waits until each is a member of the fleet."""
        self.clock = time.time() - time.monotonic()
        self.limits = [Limit(text) for text in limits.split(", ")] if isinstance(limits, str) else limits
        self.policy, self.timeout = policy, max(timeout, 0.1 + LEASE)
        self.upstream = Upstream()
        self.store = STORES[store]()
        await self.store.start()
        self.has_lines, self.further = lines, further
        listed = ", ".join(limit.yaml() for limit in self.limits)
        self.body = (
            f"limiters:\n  l: {{limits: [{listed}], queue: {queue}, on_store_failure: {policy}}}\n{limiters}"
            f"routes:\n{extra_routes.replace('URL', self.upstream.url)}"
            f"  - {{name: all, match: {{path: /}}, upstream: \"{self.upstream.url}\", {route}}}\n"
        )
        if not has_store:
            self.store.redis.kill()
        self.tasks.append(asyncio.create_task(self._heartbeat()))
        for _ in range(replicas):
            await self.join()
        if has_store:
            await until("every replica is a member", self._all_joined)

    async def _all_joined(self):
        return all([await weir.metrics("weir_store_up") for weir in self.replicas])

    async def _heartbeat(self):
        while True:
            due = time.monotonic() + 0.01
            await asyncio.sleep(0.01)
            self.late.append((now(), time.monotonic() - due))

    async def config(self, body=None):
        port = None
        if self.has_lines:
            self.lines.append(await Line().start(self.store.redis.port))
            port = self.lines[-1].port
        return f"store: {{redis: {{{self.store.yaml(port)}, fleet_size: 3{self.further}}}}}\n", body or self.body

    async def join(self):
        """Starts one more replica."""
        head, body = await self.config()
        weir = Weir(self.options.weir, head + body)
        weir.head = head
        self.started.append(weir)
        self.replicas.append(await weir.start())
        return weir

    async def reload(self, weir, body):
        await weir.reload(weir.head + body)

    async def leave(self, weir, wait=True):
        """Ends a replica by SIGTERM, as a deploy does."""
        weir.left = now()
        weir.signal(15)
        if wait:
            await weir.ended()

    def event(self, text):
        self.events.append((now(), text))
        return self.events[-1][0]

    async def sleep(self, low, high=None):
        await asyncio.sleep(self.dice.uniform(low, high if high is not None else low))

    # Load

    def serving(self):
        return [weir for weir in self.replicas if weir.left is None and weir.child.poll() is None]

    async def ask(self, weir, path="/", headers="", bound=None, connection=None):
        """Sends one request through a replica and waits for its answer."""
        ask = Ask(len(self.asks), weir, path, self.timeout if bound is None else bound)
        self.asks.append(ask)
        request = f"GET {path.rstrip('/')}/{ask.number} HTTP/1.1\r\nhost: weir\r\n{headers}\r\n".encode()
        pool = self.idle_connections.setdefault(weir, [])
        while True:
            while connection is None and pool:
                connection = pool.pop()
                connection = connection if connection.is_open else None
            try:
                connection = connection or await Connection.open(weir.address)
            except OSError:
                ask.sent = ask.answered = now()
                ask.status, ask.code = -1, "not connected"
                return ask
            was_used = connection.used
            ask.sent = ask.sent or now()
            ask.status, found, body, ask.answered = await connection.ask(request)
            if ask.status == 0 and was_used and not body:
                connection = None  # a kept connection that has just been closed: once more, as every client does
                continue
            break
        ask.code, ask.retry = found.get("weir-error", ""), found.get("retry-after")
        if connection.is_open:
            pool.append(connection)
        return ask

    async def load(self, rate, seconds, path="/", headers="", replicas=None):
        """Sends requests at an even pace, in turn through the replicas that serve."""
        begin, sent, loop = time.monotonic(), 0, asyncio.get_running_loop()
        if self.loaded is None:
            self.loaded = now()
        while (passed := time.monotonic() - begin) < seconds:
            while sent < passed * rate:
                serving = replicas or self.serving()
                if serving:
                    self.spawn(self.ask(serving[sent % len(serving)], path, headers))
                sent += 1
            await asyncio.sleep(1 / min(rate, 200))

    def spawn(self, work):
        task = asyncio.create_task(work)
        self.tasks.append(task)
        return task

    async def under_load(self, rate, work, first=None):
        """Loads until `work` has ended; before it one window at the limits' own pace, which spreads the permits."""
        limit = self.limits[0]
        await self.load(first or limit.rate / limit.per, limit.per)
        load = self.spawn(self.load(rate, 3600))
        try:
            await work
        finally:
            load.cancel()
            self.unloaded = now()

    async def settle(self, seconds=3.0):
        """Waits until every request is answered, at most as long as each may wait and some seconds more."""
        end = now() + self.timeout + seconds
        while now() < end and any(ask.answered is None for ask in self.asks):
            await asyncio.sleep(0.02)

    # Judgement

    def fail(self, word, text):
        self.failures.append(f"{word} {text}")

    def check(self, is_right, word, text):
        if not is_right:
            self.fail(word, text)

    def check_use(self, is_right, text, begin, end=float("inf"), word="USED"):
        """Checks how much was used, or how soon, in a stretch in which the machine left enough time to this program."""
        end = min(end, now())
        late = sum(late for at, late in self.late if begin <= at <= end and late > 0.02)
        if not is_right and late > (end - begin) / 100:
            self.noise.append(f"{word} {text}, client {1000 * late:.0f} of {1000 * (end - begin):.0f} ms late")
        else:
            self.check(is_right, word, text)

    def stamps(self, path="/"):
        return sorted(at for at, target in self.upstream.seen if target.startswith(path))

    def after(self, at):
        """Says which event an instant follows."""
        last = max((event for event in self.events if event[0] <= at), default=None)
        return f"{at - last[0]:.2f} s after {last[1]}" if last else f"at {at - (self.loaded or at):.2f} s"

    def waits(self, weir):
        """Returns from when to when each request waited at a replica; a refusal at once is no wait, however late this program read it."""
        asks = [ask for ask in self.asks if ask.weir is weir and ask.sent]
        spans = [(ask.sent + 0.05 + self.client_late(ask.sent, ask.sent + 0.05), ask.stamp or ask.answered or now()) for ask in asks]
        return [(begin, end) for begin, end in spans if begin < end]

    def client_late(self, begin, end):
        """Returns by how much the client was late at most in a stretch of time."""
        return max((late for at, late in self.late if begin <= at <= end + 0.05), default=0.0)

    def join_stamps(self):
        received = {}
        for at, target in self.upstream.seen:
            received.setdefault(target.rsplit("/", 1)[1], at)
        for ask in self.asks:
            ask.stamp = received.get(str(ask.number))

    async def finish(self, allowed=None, judge_waits=True):
        """Waits for all answers and judges what holds in every case."""
        await self.settle()
        self.join_stamps()
        self._judge_windows(allowed or {})
        self._judge_use()
        self._judge_waits(judge_waits)
        self._judge_refusals()
        forwarded = [ask for ask in self.asks if ask.stamp]

        def disorder(asks, slack=judge.ORDER_SLACK):
            return round(100 * judge.inversions([(ask.sent, ask.stamp) for ask in asks], slack), 2)

        self.figures["out_of_order_percent"] = disorder(forwarded)
        self.figures["out_of_order_without_slack_percent"] = disorder(forwarded, 0.0)
        self.figures["out_of_order_inside_replicas"] = [
            disorder([ask for ask in forwarded if ask.weir is weir]) for weir in self.replicas
        ]
        self.figures["client_late_ms"] = round(1000 * max((late for _, late in self.late), default=0))
        step = abs(time.time() - time.monotonic() - self.clock)
        self.check(step < 0.002, "CLOCK", f"this machine's clock was stepped by {step * 1000:.0f} ms: not judged")

    def _judge_windows(self, allowed):
        stamps, windows = self.stamps(), []
        for limit in self.limits:
            windows.append(self.judge_window(stamps, limit, allowed.get(limit.text, limit.rate)))
        self.figures["window"] = ", ".join(windows)

    def judge_window(self, stamps, limit, most):
        """Judges the fullest window. A permit may be written as late as the machine made this program at either end: an
        excess that ends with so much more slack is reported, and does not fail the run."""
        count, at = judge.fullest(stamps, limit.per, limit.algorithm)
        if count > most:
            noise = max(self.client_late(end - 0.05, end) for end in (at, at + limit.per))
            text = f"{count} of {limit.text}, window {self.after(at)}"
            if judge.fullest(stamps, limit.per, limit.algorithm, judge.SLACK + noise)[0] > most:
                self.fail("OVER", text)
            else:
                self.noise.append(f"OVER {text}, client {1000 * noise:.0f} ms late")
        return f"{count} of {limit.text}"

    def _judge_use(self):
        """Reports use and standstill between the first window and the end of the load."""
        limit, stamps = self.limits[0], self.stamps()
        begin, end = (self.loaded or now()) + limit.per, getattr(self, "unloaded", None) or self.events_end()
        if end - begin > limit.per:
            most = min(limit.rate / limit.per for limit in self.limits) * (end - begin)
            self.figures["used_percent"] = round(100 * judge.between(stamps, begin, end) / most, 1)
            still, still_at = judge.standstill(stamps, begin, end)
            self.figures["standstill_s"], self.figures["standstill_was"] = round(still, 2), self.after(still_at)
            if all(limit.algorithm != "fixed_window" for limit in self.limits):
                limits = [(limit.per, limit.rate) for limit in self.limits]
                idle, idle_at = judge.idle(stamps, begin, end, limits)
                self.figures["idle_with_room_s"], self.figures["idle_was"] = round(idle, 2), self.after(idle_at)

    def events_end(self):
        return max((ask.sent for ask in self.asks if ask.sent), default=now())

    def excused(self, ask):
        """Returns whether the request was under way while its replica was dead or stopped."""
        until = ask.answered or now()
        return any(ask.sent <= end and until >= begin for begin, end in ask.weir.excused)

    def _judge_waits(self, is_judged):
        worst, noisy = (0.0, None), 0
        for ask in self.asks:
            if ask.sent is None or ask.status == -1 or self.excused(ask):
                continue
            end = ask.stamp or ask.answered or now()
            ask.wait = end - ask.sent
            beyond = ask.wait - ask.bound
            if beyond > worst[0]:
                noise = self.client_late(end - 0.2, end)
                if noise > CLIENT_LATE:
                    noisy += beyond > TOLERANCE
                elif beyond - noise > worst[0]:
                    worst = (beyond - noise, ask)
        self.figures["wait_beyond_ms"] = round(1000 * worst[0])
        if worst[1]:
            self.figures["wait_beyond_was"] = f"{worst[1].status} {worst[1].code}, sent {self.after(worst[1].sent)}"
        if noisy:
            self.noise.append(f"WAIT {noisy} waits, client more than {1000 * CLIENT_LATE:.0f} ms late")
        if is_judged and worst[0] > TOLERANCE + judge.SLACK:
            ask = worst[1]
            state = f"{ask.status} {ask.code}".strip() if ask.answered else "never answered"
            self.fail("WAIT", f"{ask.wait:.2f} s of {ask.bound:g} s ({state}), sent {self.after(ask.sent)}")

    def _judge_refusals(self):
        """Counts answers, and refusals that give no reason or no instant."""
        counts, wrong = Counter(), Counter()
        for ask in (ask for ask in self.asks if ask.sent):
            if ask.status == -1:
                if ask.weir.left is None and not self.excused(ask):
                    wrong["not connected"] += 1
                continue
            name = "200" if ask.status == 200 else f"{ask.status} {ask.code}".strip()
            counts[name] += 1
            if self.excused(ask) or ask.status == 200:
                continue
            if ask.status is None:
                wrong["no answer in time"] += 1
            elif ask.status == 0:
                wrong["closed without an answer"] += 1
            elif str(ask.number) in self.upstream.rejected:
                continue
            elif not ask.code:
                wrong[f"{ask.status} without weir-error"] += 1
            elif ask.status == 429 and ask.code and not ask.retry:
                wrong[f"{name} without Retry-After"] += 1
            elif not self.may_refuse:
                wrong[name] += 1
            elif ask.code not in ("rate_limited", "queue_full", "paused", "store_unavailable", "draining"):
                wrong[name] += 1
        self.figures["answers"] = dict(counts)
        self.figures["without_reason"] = sum(wrong.values())
        for name, count in wrong.items():
            self.fail("REASON", f"{count} x {name}")

    async def nothing_leaked(self):
        """Checks that no queue holds anything and no task remains, once no request is under way."""
        async def is_empty():
            return all([await weir.metrics("weir_queue_waiting") == 0 for weir in self.serving()])

        try:
            await until("queues are empty", is_empty, 5)
        except RuntimeError:
            waiting = [await weir.metrics("weir_queue_waiting") for weir in self.serving()]
            self.fail("LEAK", f"weir_queue_waiting {waiting}")
        pending = sum(bool(ask.sent) and ask.answered is None and not self.excused(ask) for ask in self.asks)
        self.check(pending == 0, "LEAK", f"{pending} requests never answered")

    async def close(self):
        for task in self.tasks:
            task.cancel()
        for pool in self.idle_connections.values():
            for connection in pool:
                connection.close()
        for line in self.lines:
            line.close()
        for weir in self.started:
            weir.close()
        if self.store:
            self.store.close()
        if hasattr(self, "upstream"):
            self.upstream.close()
