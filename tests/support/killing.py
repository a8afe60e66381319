"""Marks of tests whose workers are killed."""

import signal

import pytest

import far

NEEDS_KILL = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL: workers are not killed")
NEEDS_FORK = pytest.mark.skipif(
    not far.CAN_FORK, reason="no fork, or AddressSanitizer: workers are not killed inside calls"
)
