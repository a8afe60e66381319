"""The choice of cuts: parts of a function of about equal size, with few bytes that cross from one to the next.

The size of a range of steps is that of its operations, and of each constant and record that they need, counted once.
First, bisection finds the smallest size limit within which the function fits the requested number of parts; a greedy
fill decides each limit exactly, because a longer range is never smaller (linear partition problem). Then dynamic
programming over the cuts finds the cheapest ones whose parts are near that size. The first and the last possible start
of a part only grow with its end, so each minimum is that of a sliding window (monotone queue), and the whole takes
O(parts * steps) time.
"""

import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

_SLACK = 1.2
"""Upper bound of the largest part relative to the least possible size; some room lets fewer bytes cross."""
_LEAST_SHARE = 0.5
"""Least size of a part, as a share of the mean size."""
_PRECISION = 64
"""The smallest limit is found to a 64th of the mean size."""
_NEVER = 1 << 62


@dataclass(eq=False)
class Course:
    """The data of a function for the choice of cuts; all sizes in bytes."""

    own: list[int]  # size of each step without the things that it shares with others
    needs: list[list[int]]  # indices of the shared things that each step needs, each once
    sizes: list[int]  # of the shared things
    cost: list[int]  # bytes that cross each cut: one more than there are steps
    barred: frozenset[int]  # cuts that are not possible
    cuts: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.cuts = [cut for cut in range(1, len(self.own)) if cut not in self.barred]

    @property
    def count(self) -> int:
        """The number of steps."""
        return len(self.own)

    def size(self, start: int, stop: int) -> int:
        """Return the size of a range of steps."""
        if stop - start == 1:
            return self.own[start] + sum([self.sizes[thing] for thing in self.needs[start]])
        things = {thing for needs in self.needs[start:stop] for thing in needs}
        return sum(self.own[start:stop]) + sum(self.sizes[thing] for thing in things)

    def starts(self, limit: int) -> list[int]:
        """Return, for each end of a range, its first start with which it is not larger than `limit`."""
        counts = [0] * len(self.sizes)
        found, start, total = [0], 0, 0
        for stop, needs in enumerate(self.needs):
            total += self.own[stop]
            for thing in needs:
                if not counts[thing]:
                    total += self.sizes[thing]
                counts[thing] += 1
            while total > limit and start <= stop:
                total -= self.own[start]
                for thing in self.needs[start]:
                    counts[thing] -= 1
                    if not counts[thing]:
                        total -= self.sizes[thing]
                start += 1
            found.append(start)
        return found

    def fill(self, limit: int, parts: int = _NEVER) -> list[int] | None:
        """Return the cuts of the fewest parts that are not larger than `limit`; None if more than `parts` are needed.

        None also if a range between two possible cuts is larger.
        """
        starts = self.starts(limit)
        found: list[int] = []
        begin, at = 0, 0
        for cut in (*self.cuts, self.count):
            if starts[cut] > begin:
                if at <= begin or len(found) + 2 > parts:
                    return None
                found.append(at)
                begin = at
                if starts[cut] > begin:
                    return None
            at = cut
        return found


def smallest_limit(course: Course, parts: int) -> int:
    """Return the smallest possible size of the largest part, for a number of parts; see `_PRECISION`.

    `parts`: at most one more than there are possible cuts.
    """
    total = course.size(0, course.count)
    edges = [0, *course.cuts, course.count]
    low = max(total // parts, max(course.size(a, b) for a, b in itertools.pairwise(edges)))
    high = total
    while high - low > max(total // parts // _PRECISION, 1):
        middle = (low + high) // 2
        if course.fill(middle, parts) is None:
            low = middle
        else:
            high = middle
    return high


def cheapest_cuts(course: Course, parts: int, limit: int | None = None) -> list[int]:
    """Return the cuts for a number of parts across which the fewest bytes live.

    `parts`: at most one more than there are possible cuts; with a limit, as many as `fill` needs or more. `limit`: that
    no part may exceed; default: none but that of `smallest_limit`, with some room.
    Raises: ValueError: more or fewer parts than that.
    """
    if parts == 1:
        return []
    smallest = smallest_limit(course, parts)
    most = int(smallest * _SLACK) if limit is None else min(max(int(smallest * _SLACK), 1), limit)
    least = int(course.size(0, course.count) / parts * _LEAST_SHARE)
    for lower in (least, 0):
        for upper in (most, most if limit is None else limit):
            found = _cheapest(course, parts, course.starts(upper), course.starts(lower - 1) if lower else None)
            if found is not None:
                return found
    raise ValueError(f"parts: expected what the possible cuts and the limit allow, got {parts}")


def _cheapest(course: Course, parts: int, first: Sequence[int], last: Sequence[int] | None) -> list[int] | None:
    """Return the cuts with the smallest sum of costs.

    `first`: first start of a part, by its end. `last`: one more than its last start; None where it may start anywhere
    before its end.
    """
    edges = [0, *course.cuts, course.count]
    best = [0] + [_NEVER] * (len(edges) - 1)  # of the parts so far, by the edge where they end
    back: list[list[int]] = []
    for _ in range(parts):
        now, origin = [_NEVER] * len(edges), [0] * len(edges)
        window: deque[int] = deque()
        entering = 0
        for at in range(1, len(edges)):
            edge = edges[at]
            bound = edge if last is None else min(last[edge], edge)
            while entering < at and edges[entering] < bound:
                while window and best[window[-1]] >= best[entering]:
                    window.pop()
                window.append(entering)
                entering += 1
            while window and edges[window[0]] < first[edge]:
                window.popleft()
            if window and best[window[0]] < _NEVER:
                cost = 0 if edge == course.count else course.cost[edge]
                now[at], origin[at] = best[window[0]] + cost, window[0]
        best = now
        back.append(origin)
    if best[-1] >= _NEVER:
        return None
    cuts, at = [], len(edges) - 1
    for origin in reversed(back):
        at = origin[at]
        cuts.append(edges[at])
    return cuts[::-1][1:]


def matching_cuts(course: Course, before: list[set[int]], after: list[set[int]]) -> list[int]:
    """Return the cuts of a function that place shared things on the same side as the cuts of another function.

    `course`: of the function; it has at least as many possible cuts as the other one has cuts. `before`, `after`: for
    each cut of the other function, the shared things that only its earlier, or only its later parts need.
    Returns: For each cut, among those with the fewest bytes on the wrong side, the one with the fewest that cross.
    """
    first = [course.count] * len(course.sizes)
    last = [-1] * len(course.sizes)
    for number, needs in enumerate(course.needs):
        for thing in needs:
            first[thing] = min(first[thing], number)
            last[thing] = number
    found: list[int] = []
    for number, (early, late) in enumerate(zip(before, after, strict=True)):
        wrong = [0] * (course.count + 2)
        for thing in late:  # wrongly before each cut after its first use
            wrong[first[thing] + 1] += course.sizes[thing]
        for thing in early:  # wrongly after each cut up to its last use
            wrong[0] += course.sizes[thing] if last[thing] >= 0 else 0
            wrong[last[thing] + 1] -= course.sizes[thing] if last[thing] >= 0 else 0
        for at in range(1, len(wrong)):
            wrong[at] += wrong[at - 1]
        left = len(before) - number - 1
        possible = [cut for cut in course.cuts if not found or cut > found[-1]]
        possible = possible[: len(possible) - left] if left else possible
        found.append(min(possible, key=lambda cut: (wrong[cut], course.cost[cut])))
    return found
