"""Signal-to-noise ratios in decibels."""

import math


def of_power(power: float, noise: float) -> float:
    """Return 10 * log10(power / noise), of sums of squares: infinite without noise, -infinite without power."""
    if not noise:
        return math.inf
    return 10 * (math.log10(power) - math.log10(noise)) if power else -math.inf  # the quotient may overflow


def of_norm(relative: float) -> float:
    """Return the same of the norm of an error, relative to that of the values: -20 * log10(relative)."""
    return -20 * math.log10(relative) if relative else math.inf
