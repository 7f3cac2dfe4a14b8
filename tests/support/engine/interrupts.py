"""Interrupts a function in Python at each place where a signal may do so."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from types import FrameType, FunctionType
from typing import Any

#: CPython delivers signals behind these. (Not at each opcode: then no `with` would be safe.)
_DELIVER = ("CALL", "RESUME", "JUMP_BACKWARD", "CALL_FUNCTION_EX")


class Interrupt(KeyboardInterrupt):
    """What `interrupted` raises."""


def interrupted(step: Callable[[], object], place: int, function: FunctionType) -> bool:
    """Call `step` and interrupt a function at the n-th place for that; False if it has fewer."""
    code, left = function.__code__, [place]
    names = {at.offset: at.opname for at in dis.get_instructions(code)}
    before = ["RESUME"]

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code is not code:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            left[0] -= before[0] in _DELIVER
            if left[0] == 0:
                left[0] = -1
                raise Interrupt
            before[0] = names[frame.f_lasti]
        return trace

    # Python 3.12 reports opcodes only if a frame asked for them before (python/cpython#114480).
    sys._getframe().f_trace_opcodes = True
    sys.settrace(trace)
    try:
        step()
    except Interrupt:
        return True
    finally:
        sys.settrace(None)
    return False
