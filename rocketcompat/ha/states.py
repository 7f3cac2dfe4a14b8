"""The states of both sides of a connection, and what moves them: tables, as the code uses them."""

from __future__ import annotations

from enum import Enum


class State(Enum):
    """A side's state."""

    #: Slave: no report was sent yet. Master: none has come.
    CONNECTED = "connected"
    #: Slave: the first report was sent, no frame has come. Master: it came and was not answered.
    REQUESTED = "requested"
    #: Frames flow.
    STREAMING = "streaming"
    CLOSED = "closed"


class Move(Enum):
    """What changes a side's state."""

    #: The first report was sent (slave) or has come (master).
    REQUEST = "request"
    #: The first frame came, a heartbeat or not (slave); the begin was chosen (master).
    ANSWER = "answer"
    #: A later frame or report.
    FLOW = "flow"
    #: The peer broke the protocol, was silent too long, or has closed.
    END = "end"


_END = {(state, Move.END): State.CLOSED for state in State}
#: A slave sends its report before any frame may come.
SLAVE_MOVES: dict[tuple[State, Move], State] = {
    (State.CONNECTED, Move.REQUEST): State.REQUESTED,
    (State.REQUESTED, Move.ANSWER): State.STREAMING,
    (State.STREAMING, Move.FLOW): State.STREAMING,
    **_END,
}
#: A master sends nothing before the first report; reports may come before its answer.
MASTER_MOVES: dict[tuple[State, Move], State] = {
    (State.CONNECTED, Move.REQUEST): State.REQUESTED,
    (State.REQUESTED, Move.FLOW): State.REQUESTED,
    (State.REQUESTED, Move.ANSWER): State.STREAMING,
    (State.STREAMING, Move.FLOW): State.STREAMING,
    **_END,
}
