"""The faults: what is done to Redis and to replicas. Each notes its events."""

import asyncio

from .servers import Redis
from .wire import now


async def killed(run, low, high=None):
    """Redis is killed, and back without its memory after a time."""
    run.store.redis.kill()
    run.event("Redis killed")
    await run.sleep(low, high)
    await run.store.redis.start()
    return run.event("Redis back, empty")


async def frozen(run, low, high=None):
    run.store.redis.freeze()
    run.event("Redis frozen")
    await run.sleep(low, high)
    run.store.redis.freeze(False)
    return run.event("Redis thawed")


async def flushed(run):
    await run.store.flush()
    return run.event("FLUSHALL")


async def oom(run):
    await run.store.redis.command("CONFIG", "SET", "maxmemory", "1")
    yield "OOM"
    await run.store.redis.command("CONFIG", "SET", "maxmemory", "0")


async def pause_write(run):
    await run.store.redis.command("CLIENT", "PAUSE", "60000", "WRITE")
    yield "CLIENT PAUSE WRITE"
    await run.store.redis.command("CLIENT", "UNPAUSE")


async def busy(run):
    """A script of somebody else's: first nothing is answered, then BUSY."""
    other, redis = Redis(run.store.redis.port), run.store.redis
    await redis.command("CONFIG", "SET", "lua-time-limit", "50")
    task = asyncio.create_task(other.command("EVAL", "while true do end", "0"))
    yield "BUSY"
    await redis.command("SCRIPT", "KILL")
    await asyncio.gather(task, return_exceptions=True)
    other.close()


async def readonly(run):
    await run.store.redis.command("REPLICAOF", "127.0.0.1", "1")
    yield "READONLY"
    await run.store.redis.command("REPLICAOF", "NO", "ONE")


async def noauth(run):
    redis = run.store.redis
    await redis.command("CONFIG", "SET", "requirepass", "secret")
    for kind in ("normal", "pubsub"):
        await redis.command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
    yield "NOAUTH"
    await redis.command("CONFIG", "SET", "requirepass", "")


async def swallow(run):
    for line in run.lines:
        line.set("swallow")
    yield "answers swallowed"
    for line in run.lines:
        line.set("pass")


async def replaced(run):
    """A replica dies (SIGKILL); another takes its place."""
    weir = run.dice.choice(run.serving())
    weir.excused.append((now(), float("inf")))
    weir.kill()
    run.event("replica killed")
    await run.join()
    run.event("replica joined")


async def rolled(run):
    """A replica is replaced as by a deploy."""
    weir = run.dice.choice(run.serving())
    await run.join()
    run.event("replica joined")
    await run.leave(weir)
    run.event("replica drained")


async def scripts_forgotten(run):
    await run.store.redis.command("SCRIPT", "FLUSH")
    run.event("SCRIPT FLUSH")


async def connections_killed(run):
    await run.store.redis.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    run.event("CLIENT KILL")


async def paused(run):
    await run.store.redis.command("CLIENT", "PAUSE", run.dice.randint(50, 1500), "ALL")
    run.event("CLIENT PAUSE ALL")


async def full(run):
    async for name in oom(run):
        run.event(name)
        await run.sleep(0.2, 1.5)
    run.event("end of OOM")


async def reloaded(run):
    body = run.body + f"# {run.dice.random()}\n"
    await asyncio.gather(*(run.reload(weir, body) for weir in run.serving()))
    run.event("reload")
