"""The rows of faults found from outside under which a window once went over, or requests waited or were refused
without need. Rows 9, 16, 19 and 20 stand with the figures that they are about."""

import asyncio
import json

from . import judge
from .cases import BOTH, case
from .faults import busy, flushed, frozen, killed, noauth, oom, pause_write, readonly, swallow
from .run import Limit
from .wire import Connection, call, now


@case(*BOTH)
async def row1(run, policy):
    """A fixed window (40/2s), Redis killed and back empty, five times."""
    await run.start([Limit("40/2s", "fixed_window")], policy)

    async def faults():
        for _ in range(5):
            await run.sleep(2, 3.5)
            await killed(run, 0.1, 1.2)
        await run.sleep(3)

    await run.under_load(60, faults())
    await run.finish()


async def sentinel_or_cluster(run, kind, policy):
    """The primary is killed, another takes over, and the killed one comes back empty as its replica."""
    await run.start("40/2s", policy, store=kind)

    async def faults():
        for _ in range(2):
            await run.sleep(2, 4)
            old = await run.store.primary()
            old.kill()
            run.event("primary killed")
            await run.store.successor(old)
            run.event("another primary")
            await run.sleep(3)
            await old.start()
            run.event("killed server back")
            await run.sleep(5 if kind == "cluster" else 10)

    await run.under_load(60, faults())
    await run.finish()


@case("local", "reject", "sentinel-local", "sentinel-reject", "cluster-local", "cluster-reject")
async def row2(run, variant):
    """Redis away and back (40/2s): killed and empty, or frozen with its memory, six times; or a killed primary."""
    kind, _, policy = variant.rpartition("-")
    if kind:
        return await sentinel_or_cluster(run, kind, policy)
    await run.start("40/2s", policy)

    async def faults():
        for turn in range(6):
            await run.sleep(2, 4)
            await (killed if turn % 2 else frozen)(run, 0.5, 3.5)
        await run.sleep(4)

    await run.under_load(60, faults())
    await run.finish()


@case("frozen", "busy", "cut")
async def long_outage(run, kind):
    """Redis away for 18 s and back with its memory (40/2s, `local`), twice: for longer than a silent replica is counted."""
    await run.start("40/2s", "local", lines=True)

    async def away():
        if kind == "frozen":
            await frozen(run, 18, 18.5)
        elif kind == "busy":
            async for name in busy(run):
                run.event(name)
                await run.sleep(18, 18.5)
            run.event("end of BUSY")
        else:
            for line in run.lines:
                line.set("cut")
            run.event("all replicas cut off")
            await run.sleep(18, 18.5)
            for line in run.lines:
                line.set("pass")
            run.event("lines whole")

    async def faults():
        for _ in range(2):
            await run.sleep(2, 3)
            await away()
            await run.sleep(4)

    await run.under_load(80, faults())
    await run.finish()


@case("local", "reject", "local-asked", "reject-asked")
async def row3(run, variant):
    """30/15s used up, every replica restarted in turn, FLUSHALL; `asked`: each new replica is asked before it."""
    policy, _, asked = variant.partition("-")
    await run.start("30/15s", policy, queue="off", timeout=0)
    await run.load(100, 1)
    for old in list(run.replicas):
        new = await run.join()
        await run.leave(old)
        if asked:
            await run.ask(new)
    run.event("all restarted")
    await flushed(run)
    await run.load(40, max(0.1, run.loaded + 14 - now()))
    run.unloaded = now()
    await run.finish()


@case("failover", "thaw", "cluster-thaw", "confirm")
async def row4(run, variant):
    """Sentinel or Cluster promotes a server while the old primary still takes writes: at most the limit at each, and
    use is back within 5 s of the new primary. `confirm` needs store.redis.confirm: replica, and goes nowhere over."""
    store = "cluster" if variant.startswith("cluster") else "sentinel"
    further = ", confirm: replica" if variant == "confirm" else ""
    if further and not run.options.accepts_confirm():
        run.figures["skipped"] = "this weir has no store.redis.confirm"
        return
    await run.start("40/2s", "local", store=store, further=further)
    promoted = []

    async def faults():
        for _ in range(2):
            await run.sleep(2, 4)
            old = await run.store.primary()
            if variant.endswith("thaw"):
                old.freeze()
                run.event("primary frozen")
                await run.store.successor(old)
                promoted.append(run.event("another primary"))
                old.freeze(False)
                run.event("old primary thawed")
            else:
                await run.store.sentinels[0].command("SENTINEL", "FAILOVER", "weir")
                run.event("failover ordered")
                await run.store.successor(old)
                promoted.append(run.event("another primary"))
            await run.sleep(14)

    await run.under_load(60, faults())
    await run.finish({"40/2s": 40 if further else 80})
    for at in promoted:
        count = judge.between(run.stamps(), at + 5, at + 13)
        run.check_use(count >= 0.9 * 160, f"{count} of 160 from 5 to 13 s after another primary", at, at + 13)


@case("cut", "swallow", "hold")
async def row5(run, mode):
    """One replica cut off from Redis, then FLUSHALL, all `reject` (40/2s), five times; `hold`: its traffic is held for
    1.2 s and then delivered."""
    await run.start("40/2s", "reject", lines=True)

    async def faults():
        for _ in range(5):
            await run.sleep(2.5, 3.5)
            run.lines[0].set(mode)
            run.event(f"one replica: {mode}")
            await run.sleep(0, 0.3)
            await flushed(run)
            await run.sleep(*((0.9, 1.2) if mode == "hold" else (0.3, 2.5)))
            run.lines[0].set("pass")
            run.event("line whole")
        await run.sleep(3)

    await run.under_load(60, faults())
    await run.finish()


@case(*BOTH)
async def row6(run, policy):
    """A leaky bucket (40/2s), Redis frozen for 15 s: at most one window without permits afterwards."""
    await run.start([Limit("40/2s", "leaky_bucket")], policy)
    back = []

    async def faults():
        await run.sleep(2)
        back.append(await frozen(run, 15))
        await run.sleep(6)

    await run.under_load(60, faults())
    await run.finish()
    still, _ = judge.standstill(run.stamps(), back[0], back[0] + 6)
    run.figures["still_after_s"] = round(still, 2)
    run.check_use(still <= 2, f"{still:.2f} s still after the thaw, one window (2 s) allowed", back[0])


@case(*BOTH)
async def row7(run, policy):
    """OOM, CLIENT PAUSE WRITE, BUSY, READONLY, NOAUTH, answers swallowed, each for up to 2.5 s (40/2s)."""
    await run.start("40/2s", policy, lines=True)

    async def faults():
        for fault in (oom, pause_write, busy, readonly, noauth, swallow):
            await run.sleep(3, 4)
            async for name in fault(run):
                run.event(name)
                await run.sleep(0.5, 2.5)
            run.event(f"end of {name}")
        await run.sleep(4)

    await run.under_load(60, faults())
    await run.finish()


@case("2s-all", "2s-one", "20s-all", "20s-one")
async def row8(run, variant):
    """The limit used up by all replicas or by one, all idle for a while, Redis killed, load again: `local`."""
    per, _, users = variant.partition("-")
    await run.start(f"40/{per}", "local", queue="off", timeout=0)
    for _ in range(3 if per == "2s" else 1):
        await run.load(100, 0.6, replicas=run.replicas[:1] if users == "one" else None)
        run.event("limit used")
        await run.sleep(0.2, 1.2 if per == "2s" else 8)
        run.store.redis.kill()
        run.event("Redis killed")
        await run.sleep(0, 1)
        await run.load(60, 3 if per == "2s" else 14)
        await run.store.redis.start()
        run.event("Redis back, empty")
        await run.sleep(3.5)
    await run.finish()


@case("single", "cluster")
async def row10(run, store):
    """10/1m used up, a reload that changes only `group`, then FLUSHALL: nothing more is sent."""
    await run.start("10/1m", "local", queue="off", timeout=0, store=store)
    await run.load(50, 0.6)
    body = run.body.replace("on_store_failure", "group: other, on_store_failure")
    await asyncio.gather(*(run.reload(weir, body) for weir in run.replicas))
    run.event("reload of `group`")
    await run.load(30, 3)
    await flushed(run)
    await run.load(30, 4)
    await run.finish()


@case()
async def row11(run, _):
    """10/1m used up through one replica, the key of its state deleted; other replicas and another queue ask."""
    other = '  - {name: both, match: {path: /both}, upstream: "URL", limiters: [l, m]}\n'
    further = "  m: {limits: [1000/1s], queue: off, group: l}\n"
    await run.start("10/1m", "local", queue="off", timeout=0, limiters=further, extra_routes=other)
    await run.load(50, 0.6, replicas=run.replicas[:1])
    keys = [key for key in await run.store.redis.command("KEYS", "*:limiter:l*")]
    run.check(bool(keys), "HARNESS", "no key of the limiter's state found")
    for _ in range(2):
        await run.store.redis.command("DEL", *keys)
        run.event("state deleted")
        first, others = run.replicas[:1], run.replicas[1:]
        for path, replicas in (("/both", first), ("/both", others), ("/", others), ("/", None)):
            await run.load(20, 0.7, path=path, replicas=replicas)
    await run.finish()


@case("seen", "unseen")
async def row12(run, variant):
    """`local`, 2/10s, three replicas, no Redis (`seen`: there was one): at most 2 are sent in 10 s."""
    await run.start("2/10s", "local", queue="off", timeout=0, has_store=variant == "seen")
    if variant == "seen":
        run.store.redis.kill()
        run.event("Redis killed")
    await run.load(20, 22)
    await run.finish()
    run.figures["sent"] = len(run.stamps())


@case("flush", "lower")
async def row13(run, variant):
    """A replica stopped (SIGSTOP) beyond a lease under 50/5s, meanwhile FLUSHALL or a lower limit (10/5s); twice."""
    await run.start("50/5s", "local", queue="{timeout: 8s, max_waiting: 1000}", timeout=8)
    lowered = []

    async def faults():
        for _ in range(2):
            await run.sleep(2, 4)
            stopped = run.replicas[0]
            stopped.excused.append([now(), float("inf")])
            stopped.freeze()
            run.event("replica stopped")
            await run.sleep(0.2)
            if variant == "flush":
                await flushed(run)
            elif not lowered:
                body = run.body.replace("rate: 50", "rate: 10")
                await asyncio.gather(*(run.reload(weir, body) for weir in run.replicas[1:]))
                lowered.append(run.event("limit lowered to 10/5s"))
            await run.sleep(0.6, 4)
            stopped.freeze(False)
            stopped.excused[-1][1] = run.event("replica continued")
            if lowered:
                await run.reload(stopped, run.body.replace("rate: 50", "rate: 10"))
            await run.sleep(6)

    await run.under_load(30, faults())
    await run.finish()
    for at in lowered:
        later = [stamp for stamp in run.stamps() if stamp >= at + 0.6]
        run.figures["window"] += f", later {run.judge_window(later, Limit('10/5s'), 10)}"


async def pause(run):
    status, _ = await call(run.replicas[0].admin, "POST", "/api/limiters/l/pause", {"for": "18s"})
    run.check(status == 200, "HARNESS", f"a pause by hand got {status}")
    run.event("pause by hand")


async def unused_pause(run):
    await pause(run)
    await flushed(run)
    await run.sleep(1)
    begin = now()
    await run.load(20, 3)
    await run.finish()
    sent = sum(at >= begin for at in run.stamps())
    run.check(sent == 0, "PAUSE", f"forgotten: {sent} sent during a pause by hand")


@case("outage-in-pause", "pause-in-outage", "unused")
async def row14(run, variant):
    """A pause of 18 s (by hand; by the upstream where it begins in the outage) and an outage inside each other, queue
    of 2 s and 100: both bounds hold, the pause is shown and can be ended. `unused`: a pause by hand of an idle limiter
    outlives FLUSHALL."""
    await run.start("40/2s", "local", queue="{timeout: 2s, max_waiting: 100}", timeout=2)
    if variant == "unused":
        return await unused_pause(run)
    results = {}

    async def faults():
        await run.sleep(2)
        if variant == "outage-in-pause":
            await pause(run)
            await run.sleep(1)
        run.store.redis.kill()
        run.event("Redis killed")
        await run.sleep(1.5)
        if variant == "pause-in-outage":
            run.upstream.rejects = b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 18\r\ncontent-length: 0\r\n\r\n"
            await run.sleep(2.2)
            run.upstream.rejects = None
            run.event("the upstream has asked for a pause of 18 s")
        begin = now()
        await run.sleep(6)
        results["sent_in_pause"] = judge.between(run.stamps(), begin + 0.5, now())
        shown = []
        for weir in run.replicas:
            _, text = await call(weir.admin, "GET", "/api/limiters/l")
            shown.append(bool(text) and json.loads(text).get("paused_until") is not None)
        results["shown"] = shown
        results["resume"] = [(await call(weir.admin, "POST", "/api/limiters/l/resume", {}))[0] for weir in run.replicas]
        begin = run.event("resume at each replica")
        await run.sleep(3)
        results["resumed"] = judge.between(run.stamps(), begin, now())
        await run.store.redis.start()
        run.event("Redis back, empty")
        await run.sleep(4)

    await run.under_load(700, faults())  # fills each queue while the store is not heard
    await run.finish()
    most = max(judge.most_at_once(run.waits(weir)) for weir in run.replicas)
    run.figures.update(results, most_waiting=most)
    run.check(most <= 100, "WAITING", f"{most} at one replica, max_waiting 100")
    run.check(results["sent_in_pause"] == 0, "PAUSE", f"{results['sent_in_pause']} sent during the pause")
    run.check(all(results["shown"]), "PAUSE", f"shown by the replicas: {results['shown']}")
    run.check(results["resumed"] > 0, "PAUSE", f"cannot be ended: `resume` got {results['resume']}, nothing sent for 3 s")


@case("3s", "10s")
async def row15(run, timeout):
    """20/1s and 300/20s, fleet_size 3, no Redis: no wait beyond the queue's timeout."""
    await run.start("20/1s, 300/20s", "local", queue=f"{{timeout: {timeout}, max_waiting: 1000}}",
                    timeout=float(timeout[:-1]), has_store=False)
    await run.load(60, 25 if timeout == "3s" else 35)
    run.unloaded = now()
    await run.finish()


@case()
async def row17(run, _):
    """SIGTERM under new connections without pause, eight times: each that was made and has sent is answered."""
    await run.start("1000000/1s", "local", replicas=1)
    made, lost = 0, 0

    async def one(weir):
        nonlocal made, lost
        try:
            connection = await Connection.open(weir.address)
        except OSError:
            return False
        made += 1
        status, *_ = await connection.ask(b"GET /x HTTP/1.1\r\nhost: weir\r\n\r\n")
        connection.close()
        lost += status == 0
        return True

    async def client(weir):
        while await one(weir):
            pass

    for _ in range(8):
        weir = run.replicas[-1]
        clients = [run.spawn(client(weir)) for _ in range(8)]
        await run.sleep(0.3, 0.5)
        await run.leave(weir)
        run.event("drained")
        await asyncio.wait(clients, timeout=5)
        await run.join()
    run.figures.update(connections=made, without_reason=lost)
    run.check(lost == 0, "REASON", f"{lost} of {made} connections closed without an answer")


@case(*BOTH)
async def row18(run, policy):
    """No queue, 20 requests a second of 1000/1s, Redis stands still for 150 ms twelve times: nobody is refused."""
    await run.start("1000/1s", policy, queue="off", timeout=0)
    run.may_refuse = False

    async def faults():
        await run.sleep(1)
        for _ in range(12):
            await frozen(run, 0.15)
            await run.sleep(1, 1.3)

    load = run.spawn(run.load(20, 3600))
    await faults()
    load.cancel()
    await run.finish()
