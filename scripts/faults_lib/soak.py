"""Long runs, and many partitions."""

import asyncio

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
        return None not in waiting and sum(waiting) + len(run.upstream.seen) >= 9_990

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
    back_in_use(run, back, seconds=8)
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
