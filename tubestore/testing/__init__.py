"""Test doubles for code that uses tubestore: a disk in memory, its crashes and its faults.

- `MemoryVfs`: the file system of a test; give it to `tubestore.open(..., vfs=...)`;
- `MemoryVfs.record` and `crash_states`: every state that a kill or a power cut could leave;
- `FaultyVfs`: fails the n-th call of a kind; `LyingVfs`: reports syncs that it did not make.

`ManualClock` is in `tubestore.clock`.
"""

from tubestore.testing.calls import Call
from tubestore.testing.crash import CrashState, Distinct, crash_states
from tubestore.testing.faults import Fault, FaultyVfs, LyingVfs
from tubestore.testing.journal import Journal
from tubestore.testing.memory_vfs import MemoryVfs

__all__ = [
    "Call",
    "CrashState",
    "Distinct",
    "Fault",
    "FaultyVfs",
    "Journal",
    "LyingVfs",
    "MemoryVfs",
    "crash_states",
]
