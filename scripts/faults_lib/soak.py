"""Long runs, and many partitions."""

import asyncio

from . import judge
from .cases import BOTH, case
from .faults import (connections_killed, flushed, frozen, full, killed, paused, reloaded, replaced, rolled,
                     scripts_forgotten)
from .servers import until
from .use import back_in_use
from .wire import now


@case(*BOTH)
async def row9(run, policy):
    """Restarts of replicas and flushes every 2 to 4 s for 90 s, limits 40/2s and 1000/60s on the route."""
    await run.start("40/2s, 1000/60s", policy)

    async def faults():
        end = now() + 90
        while now() < end:
            await run.sleep(2, 4)
            await run.dice.choice((flushed, replaced, rolled))(run)

    await run.under_load(60, faults())
    await run.finish()


@case(*BOTH)
async def soak(run, policy):
    """A fault every 3 to 5 s for --minutes, limits 40/2s and 1000/60s on the route: none over, at least 60 % used,
    nothing leaked."""
    await run.start("40/2s, 1000/60s", policy)
    faults = [flushed, lambda run: killed(run, 0, 1.5), lambda run: frozen(run, 0.05, 3), scripts_forgotten,
              connections_killed, paused, full, replaced, rolled, reloaded]

    async def suffer():
        end = now() + 60 * run.options.minutes
        while now() < end:
            await run.sleep(3, 5)
            await run.dice.choice(faults)(run)
        await run.sleep(3)

    await run.under_load(60, suffer())
    await run.finish()
    run.check_use(run.figures["used_percent"] >= 60, f"{run.figures['used_percent']} %, 60 expected", run.loaded)
    await run.nothing_leaked()


@case()
async def partitions(run, _):
    """10 000 partitions wait in three replicas (100/1s for all, 10/1s for each): at most 50 script calls a second beyond
    those that book; Redis frozen for 1 s: back to 97 % within 2 s, nobody refused but by its own timeout."""
    queue = "{timeout: 120s, max_waiting: 100000}"
    key = 'key: ["header:x-tenant"], max_partitions: 100000'
    limiters = f"  tenant: {{limits: [10/1s], {key}, queue: {queue}, group: l}}\n"
    await run.start("100/1s", "local", queue=queue, timeout=120, limiters=limiters, route="limiters: [l, tenant]")
    run.loaded = now()
    for index in range(10_000):
        weir = run.replicas[index % 3]
        run.spawn(run.ask(weir, headers=f"x-tenant: t{index}\r\n"))
        if index % 10 == 9:
            await asyncio.sleep(0.005)

    async def all_wait():
        waiting = [await weir.metrics("weir_queue_waiting") for weir in run.replicas]
        # Those whose booking is under way wait, too: each has a call of its own.
        is_booked = await run.store.redis.script_calls() >= 10_000
        return None not in waiting and sum(waiting) + len(run.upstream.seen) >= 9_990 and is_booked

    run.figures["all_wait_after_s"] = None
    try:
        await until("10 000 wait", all_wait, 60)
        run.figures["all_wait_after_s"] = round(now() - run.loaded, 1)
    except RuntimeError as error:
        run.fail("SLOW", str(error))
    await run.sleep(2)
    calls, sent, begin = await run.store.redis.script_calls(), len(run.upstream.seen), now()
    await run.sleep(10)
    calls, sent, span = await run.store.redis.script_calls() - calls, len(run.upstream.seen) - sent, now() - begin
    run.figures["calls_per_s"], run.figures["sent_per_s"] = round(calls / span, 1), round(sent / span, 1)
    extra = (calls - sent) / span
    run.figures["calls_beyond_booking_per_s"] = round(extra, 1)
    run.check(extra <= 50, "CALLS", f"{extra:.0f} script calls/s beyond those that book, 50 allowed")
    back = await frozen(run, 1)
    await run.sleep(12)
    back_in_use(run, back, seconds=8 * (1 + judge.guard(1)))  # permits of one window may come at one instant
    refused = [ask for ask in run.asks if ask.answered and ask.status != 200]
    if refused:
        first = min(refused, key=lambda ask: ask.answered)
        text = f"first {first.status} {first.code} {run.after(first.answered)}"
        run.fail("REASON", f"{len(refused)} refused before their timeout, {text}")
    for ask in run.asks:
        if ask.answered is None:  # the rest need not be waited for
            ask.answered, ask.status = now(), 200
    run.unloaded = run.loaded
    await run.finish(judge_waits=False)


HERD_WAIT = 60


async def keep_waiting(run, tenant):
    """Keeps one request of a tenant waiting: the next one comes when it is answered."""
    while True:
        await run.ask(run.replicas[tenant % 3], headers=f"x-tenant: t{tenant}\r\n")


async def store_timeouts(run):
    """Returns how many calls of all replicas to the store have timed out."""
    return sum(await asyncio.gather(*(weir.metrics("weir_store_calls_total", 'result="timeout"') for weir in run.replicas)))


async def call_rates(run, name, seconds):
    """Reports the script calls a second, those beyond what was sent, and the calls that timed out."""
    redis, begin = run.store.redis, now()
    calls, timeouts, sent = await redis.script_calls(), await store_timeouts(run), len(run.upstream.seen)
    await run.sleep(seconds)
    span = now() - begin
    calls, sent = await redis.script_calls() - calls, len(run.upstream.seen) - sent
    run.figures[f"{name}_calls_per_s"] = round(calls / span, 1)
    run.figures[f"{name}_sent_per_s"] = round(sent / span, 1)
    run.figures[f"{name}_timeouts"] = round(await store_timeouts(run) - timeouts)
    return (calls - sent) / span, run.figures[f"{name}_timeouts"]


@case("400", "1000")
async def herd(run, tenants):
    """400 or 1000 tenants, each with one request that waits for 100/1s of all and 10/1s of its own; Redis stands still for
    1 s: back to 97 % within 2 s and for 25 s on, nobody refused, no call to the store times out later than 2 s after its
    return, at most 50 script calls a second beyond those that book, before and after."""
    queue = f"{{timeout: {HERD_WAIT}s, max_waiting: 10000}}"
    limiters = f'  tenant: {{limits: [10/1s], key: ["header:x-tenant"], queue: {queue}, group: l}}\n'
    await run.start("100/1s", "local", queue=queue, timeout=HERD_WAIT, limiters=limiters, route="limiters: [l, tenant]")
    run.may_refuse = False
    run.loaded = now()
    clients = []
    for tenant in range(int(tenants)):
        clients.append(run.spawn(keep_waiting(run, tenant)))
        await asyncio.sleep(0.002)
    await run.sleep(5)
    before, _ = await call_rates(run, "before", 5)
    back = await frozen(run, 1)
    await call_rates(run, "first_2s", 2)
    after, timeouts = await call_rates(run, "after", 23)
    run.unloaded = now()
    for client in clients:
        client.cancel()
    for ask in run.asks:
        if ask.answered is None:  # left by itself: not judged
            ask.answered, ask.status = now(), 200
    back_in_use(run, back, seconds=22 * (1 + judge.guard(1)))  # permits of one window may come at one instant
    for when, extra, begin, end in (("before", before, run.loaded, back - 1), ("after", after, back + 2, run.unloaded)):
        text = f"{extra:.0f} script calls/s beyond those that book {when} the stall, 50 allowed"
        run.check_use(extra <= 50, text, begin, end, "CALLS")
    run.check_use(timeouts == 0, f"{timeouts} calls timed out from 2 s after the return on", back + 2, run.unloaded, "TIMEOUT")
    await run.finish()
