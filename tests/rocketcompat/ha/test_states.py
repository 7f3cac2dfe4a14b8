"""The tables of both sides of a connection."""

from __future__ import annotations

import pytest

from rocketcompat.ha.states import MASTER_MOVES, SLAVE_MOVES, Move, State

TABLES = pytest.mark.parametrize("table", [MASTER_MOVES, SLAVE_MOVES], ids=["master", "slave"])


@TABLES
def test_no_table_lets_a_closed_side_go_on(table: dict[tuple[State, Move], State]) -> None:
    assert {move for state, move in table if state is State.CLOSED} == {Move.END}


@TABLES
def test_every_state_may_end(table: dict[tuple[State, Move], State]) -> None:
    assert {table[state, Move.END] for state in State} == {State.CLOSED}


@TABLES
def test_frames_flow_only_behind_the_first_report_and_its_answer(
    table: dict[tuple[State, Move], State],
) -> None:
    before = {state for (state, _), after in table.items() if after is State.STREAMING}
    assert before == {State.REQUESTED, State.STREAMING}
    assert table[State.REQUESTED, Move.ANSWER] is State.STREAMING
    assert {move for (state, move) in table if state is State.CONNECTED} == {
        Move.REQUEST, Move.END,
    }  # fmt: skip
