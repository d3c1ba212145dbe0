"""Cases that judge how much of the limit is used, and how soon again after a fault."""

import asyncio

from . import judge
from .cases import BOTH, case, stressed
from .faults import flushed, frozen, killed
from .wire import Connection, now


@case()
async def calm(run, _):
    """No fault: nothing over, at least 97 % used, no pair out of order. Shows that the judge is right."""
    await run.start("100/1s")
    await run.under_load(300, run.sleep(8))
    await run.finish()
    run.check_use(run.figures["used_percent"] >= 97, f"{run.figures['used_percent']} %, 97 expected", run.loaded)


def back_in_use(run, back, rate=100, seconds=5, most=97):
    """Judges the use from 2 s after the store's return on, of a limit of one second."""
    stamps = run.stamps()
    count = judge.between(stamps, back + 2, back + 2 + seconds)
    percent = round(100 * count / rate / seconds, 1)
    run.figures["used_from_2s_percent"] = min(percent, run.figures.get("used_from_2s_percent", 1000))
    run.figures["least_window_from_2s"] = judge.least(stamps, back + 2, back + 2 + seconds, 1 + judge.guard(1))
    text = f"{percent} % in the {seconds} s from 2 s after the return, {most} expected"
    run.check_use(percent >= most, text, back, back + 2 + seconds)


async def one_replica_lost(run, _=None):
    """One replica loses Redis for 0.1 to 0.3 s under 100/1s, three times: all is back within 2 s."""
    await run.start("100/1s", "local", lines=True)
    backs = []

    async def faults():
        await run.sleep(2)
        for _ in range(3):
            run.lines[0].set("cut")
            run.event("one replica cut off")
            await run.sleep(0.1, 0.3)
            run.lines[0].set("pass")
            backs.append(run.event("line whole"))
            await run.sleep(7.5)

    await run.under_load(300, faults())
    await run.finish({"100/1s": 134})
    for back in backs:
        back_in_use(run, back)


async def returns(run, fault, policy):
    await run.start("100/1s", policy)
    backs = []

    async def faults():
        await run.sleep(2)
        backs.append(await fault(run))
        await run.sleep(9)

    await run.under_load(300, faults())
    await run.finish()
    back_in_use(run, backs[0], seconds=7)
    return backs[0]


@case("calm", "stress")
async def row19(run, variant):
    """One replica loses Redis for a moment, beside eight busy processes or none: all is back within 2 s."""
    await (stressed(run, one_replica_lost(run)) if variant == "stress" else one_replica_lost(run))


@case("flush", "restart")
async def row20(run, variant):
    """FLUSHALL, or Redis killed and back empty, beside `stress -c 8`: back to 97 % within 2 s; nothing stands still
    for a second after FLUSHALL. Without stress: flush-once, restart-once."""
    await stressed(run, (flush_once if variant == "flush" else restart_once)(run, "local"))


@case(*BOTH)
async def flush_once(run, policy):
    """One FLUSHALL under 100/1s and a backlog: 97 % used within 2 s, nothing stands still longer than 1 s."""
    back = await returns(run, flushed, policy)
    still, _ = judge.standstill(run.stamps(), back, back + 5)
    run.figures["still_after_s"] = round(still, 2)
    run.check_use(still <= 1, f"{still:.2f} s still after FLUSHALL, 1 s allowed", back, back + 5)


@case(*BOTH)
async def restart_once(run, policy):
    """Redis killed and back empty within 0.3 s under 100/1s and a backlog: 97 % used within 2 s."""
    await returns(run, lambda run: killed(run, 0.2, 0.3), policy)


@case(*BOTH)
async def outage_5s(run, policy):
    """Redis frozen for 5 s under 100/1s and a backlog: 97 % used within 2 s of its return."""
    await returns(run, lambda run: frozen(run, 5), policy)


@case(*BOTH)
async def flush_often(run, policy):
    """FLUSHALL every 1.5 s for 30 s under 40/2s: at least 40 % used, never over."""
    await run.start("40/2s", policy)
    span = []

    async def faults():
        await run.sleep(2)
        span.append(now())
        for _ in range(20):
            await flushed(run)
            await run.sleep(1.5)
        span.append(now())

    await run.under_load(60, faults())
    await run.finish()
    percent = round(100 * judge.between(run.stamps(), *span) / (20 * (span[1] - span[0])), 1)
    run.figures["used_percent"] = percent
    run.check_use(percent >= 40, f"{percent} % under flushes, 40 expected", *span)


async def at_once(run, count):
    """Sends `count` requests at once, in turn to the replicas, by connections that are open."""
    weirs = run.replicas
    connections = [await Connection.open(weirs[index % 3].address) for index in range(count)]
    run.loaded = now()
    tasks = [run.spawn(run.ask(weirs[index % 3], connection=connections[index])) for index in range(count)]
    await asyncio.sleep(0)
    run.event(f"{count} requests sent")
    return tasks, connections


def used_of_windows(run, windows):
    """Reports and returns the used part of 100/1s in its first whole windows, from the first receipt on."""
    stamps = run.stamps()
    run.figures["first_window"] = judge.between(stamps, run.loaded, run.loaded + 1)
    run.figures["first_after_ms"] = round(1000 * (stamps[0] - run.loaded))
    run.figures["sending_took_ms"] = round(1000 * (max(ask.sent for ask in run.asks) - run.loaded))
    count = judge.between(stamps, stamps[0], stamps[0] + windows * (1 + judge.guard(1)))
    run.figures["used_percent"] = round(count / windows, 1)
    return run.figures["used_percent"]


@case("cold", "warm")
async def cold_start(run, variant):
    """Three fresh replicas, 900 requests at once, 100/1s: 97 % used in the first window and in the first eight, < 1 % out of order
    of the pairs that were sent more than 20 ms apart. `warm`: the same after some seconds of use."""
    await run.start("100/1s", "local", queue="{timeout: 30s, max_waiting: 1000}", timeout=30)
    if variant == "warm":
        await run.load(90, 4)
        await run.sleep(2.5)
        run.asks.clear()
        run.upstream.seen.clear()
    tasks, _ = await at_once(run, 900)
    await asyncio.wait(tasks, timeout=25)
    run.unloaded = run.loaded
    await run.finish()
    sent = max(ask.sent for ask in run.asks) + 0.2
    used, first, wrong = used_of_windows(run, 8), run.figures["first_window"], run.figures["out_of_order_percent"]
    run.check_use(first >= 97, f"{first} of 100 in the first window, 97 expected", sent)
    run.check_use(used >= 97, f"{used} % in eight windows, 97 expected", sent)
    text = f"{wrong} % of pairs out of order, sent within {run.figures['sending_took_ms']} ms"
    run.check_use(wrong < 1, text, run.loaded, sent, "ORDER")


@case()
async def cold_start_450(run, _):
    """Three fresh replicas, 450 requests at once of which 150 leave, 100/1s: at least 93 % used
    in the three windows for those who stay."""
    await run.start("100/1s", "local", queue="{timeout: 30s, max_waiting: 1000}", timeout=30)
    tasks, connections = await at_once(run, 450)
    await run.sleep(0.3)
    forwarded = {target for _, target in run.upstream.seen}
    waiting = [index for index in range(450) if f"/{run.asks[index].number}" not in forwarded]
    for index in run.dice.sample(waiting, min(150, len(waiting))):
        tasks[index].cancel()
        connections[index].close()
        run.asks[index].answered, run.asks[index].status = now(), 200  # left by itself: not judged
    run.event("150 left")
    await asyncio.wait(tasks, timeout=20)
    run.unloaded = run.loaded
    await run.finish()
    used = used_of_windows(run, 3)
    run.check_use(used >= 93, f"{used} % in three windows, 93 expected", run.loaded + 0.5)
