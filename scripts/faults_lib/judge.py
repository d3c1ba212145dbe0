"""Figures from instants: pure functions."""

from bisect import bisect_left, bisect_right

SLACK = 0.005
# Requests that are sent to different replicas closer together than a call to the store may take, on a busy machine, have no order that
# anybody could know; nor have permits that are used within a guard, of 10 ms for a window of 1 s.
ORDER_SLACK = 0.02


def fullest(stamps, per, algorithm="sliding_window", slack=SLACK):
    """Returns the count and the beginning of the fullest window. `stamps` ascend."""
    if algorithm == "fixed_window":
        counts = {}
        for at in stamps:
            begin = at // per * per
            if begin + slack <= at <= begin + per - slack:
                counts[begin] = counts.get(begin, 0) + 1
        return max(((count, begin) for begin, count in counts.items()), default=(0, 0))
    # Slots of a leaky bucket are evenly spaced, and each may be used late by the guard.
    width = per - slack - (guard(per) if algorithm == "leaky_bucket" else 0)
    best, first = (0, 0), 0
    for last, at in enumerate(stamps):
        while stamps[first] <= at - width:
            first += 1
        best = max(best, (last - first + 1, stamps[first]))
    return best


def guard(per):
    return min(max(per / 100, 0.001), 0.02)


def between(stamps, begin, end):
    return bisect_left(stamps, end) - bisect_left(stamps, begin)


def least(stamps, begin, end, width):
    """Returns the fewest stamps of a window of this width inside the stretch."""
    inside = [at for at in stamps if begin <= at <= end]
    starts = [begin] + [at for at in inside if at + width <= end]
    return min((bisect_right(inside, at + width) - bisect_right(inside, at) for at in starts), default=0)


def standstill(stamps, begin, end):
    """Returns the longest time without a stamp, and its beginning."""
    inside = [begin] + [at for at in stamps if begin < at < end] + [end]
    return max((later - earlier, earlier) for earlier, later in zip(inside, inside[1:]))


def idle(stamps, begin, end, limits):
    """Returns the longest time without a stamp though every window had room, and its beginning. `limits` are pairs (per, rate)."""
    longest = (0, begin)
    edges = [begin] + [at for at in stamps if begin < at < end] + [end]
    for earlier, later in zip(edges, edges[1:]):
        sent, room = bisect_right(stamps, earlier), earlier
        for per, rate in limits:
            if sent >= rate:
                room = max(room, stamps[sent - rate] + per + guard(per))
        longest = max(longest, (later - room, earlier))
    return longest


def most_at_once(spans):
    """Returns the most spans (begin, end) that share an instant."""
    steps = sorted([(begin, 1) for begin, _ in spans] + [(end, -1) for _, end in spans])
    most = count = 0
    for _, step in steps:
        count += step
        most = max(most, count)
    return most


def inversions(pairs, slack=0.0):
    """Returns the part of all pairs (sent, received) whose order of receipt is not that of sending. Pairs that were sent no further
    apart than `slack` do not count, and those that were received no further apart than it are in order."""
    ordered = sorted(pairs)
    received = sorted(at for _, at in ordered)
    tree, wrong, count, first = [0] * (len(received) + 1), 0, 0, 0
    for sent, at in ordered:
        while ordered[first][0] < sent - slack:
            index = bisect_right(received, ordered[first][1])
            while index < len(tree):
                tree[index] += 1
                index += index & -index
            first += 1
        index, before = bisect_right(received, at + slack), 0
        while index:
            before += tree[index]
            index &= index - 1
        count += first
        wrong += first - before
    return wrong / count if count else 0.0
