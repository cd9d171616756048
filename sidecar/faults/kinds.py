"""The kinds of faults on the request path, by name: each is one class in a file of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sidecar.faults.abort import AbortFault
from sidecar.faults.bandwidth import BandwidthFault
from sidecar.faults.black_hole import BlackHoleFault
from sidecar.faults.corrupt import CorruptFault
from sidecar.faults.cut_stream import CutStreamFault
from sidecar.faults.delay import DelayFault
from sidecar.faults.first_byte import FirstByteFault
from sidecar.faults.reset import ResetFault
from sidecar.faults.slicing import SlicingFault
from sidecar.faults.slow_close import SlowCloseFault
from sidecar.faults.truncate import TruncateFault

if TYPE_CHECKING:
    from sidecar.faults.kind import Kind

KINDS: Final[dict[str, Kind]] = {
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
