"""Faults that warmroute injects into its own data path: small, removable, bounded in time.

A rule (``FaultRule``) says which kind, for which attempts, how often and until when. A kind is one class in a file of
its own (``Kind``), and :data:`KINDS` names them. Off, the data path pays one test of None.

Nothing here knows an event loop but ``link``, which carries an attempt that is struck.
"""

from __future__ import annotations

from sidecar.faults.abort import AbortFault
from sidecar.faults.bandwidth import BandwidthFault
from sidecar.faults.black_hole import BlackHoleFault
from sidecar.faults.corrupt import CorruptFault
from sidecar.faults.cut_stream import CutStreamFault
from sidecar.faults.delay import DelayFault
from sidecar.faults.first_byte import FirstByteFault
from sidecar.faults.kind import Kind
from sidecar.faults.reset import ResetFault
from sidecar.faults.rules import FaultRule
from sidecar.faults.slicing import SlicingFault
from sidecar.faults.slow_close import SlowCloseFault
from sidecar.faults.truncate import TruncateFault

KINDS: dict[str, Kind] = {
    "delay": DelayFault(),
    "abort": AbortFault(),
    "reset": ResetFault(),
    "black_hole": BlackHoleFault(),
    "bandwidth": BandwidthFault(),
    "slicing": SlicingFault(),
    "truncate": TruncateFault(),
    "slow_close": SlowCloseFault(),
    "corrupt": CorruptFault(),
    "first_byte": FirstByteFault(),
    "cut_stream": CutStreamFault(),
}
"""All kinds on the request path, by name."""

__all__ = ["KINDS", "FaultRule", "Kind"]
