"""The parts of a repair: the rows that are printed, and the changes to bytes. Reads only."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from rocketcompat.formats import OWN_DIRECTORY, PROGRESS_FILE
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.repair.overlay import FileChange, OverlayVfs
from tubestore.core.quarantine import Action


@dataclass(slots=True)
class RepairPlan:
    """Everything that a repair does, in its order: moves, removals, changes, builds, `last`."""

    actions: list[Action] = field(default_factory=list)
    #: Files of the log that get the bytes of other files, before all else: path, the other's path.
    moves: dict[str, str] = field(default_factory=dict)
    changes: dict[str, FileChange] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)
    rebuilds: list[str] = field(default_factory=list)
    #: Files that are removed when all else is done.
    last: list[str] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """True if nothing can be done."""
        return not (self.moves or self.changes or self.removed or self.rebuilds or self.last)

    def change(self, action: Action, change: FileChange) -> None:
        """Add a change, over one of the same file."""
        self.actions.append(action)
        old = self.changes.get(change.path)
        if old is not None and not change.fresh:
            zero = min(
                (z for z in (old.zero_from, change.zero_from) if z is not None), default=None
            )
            change = replace(change, patches=(*old.patches, *change.patches), zero_from=zero,
                             fresh=old.fresh)  # fmt: skip
        self.changes[change.path] = change

    def remove(self, path: str, size: int, why: str) -> None:
        """Add a removal."""
        self.actions.append(Action(path, "remove", 0, size, why))
        self.removed.append(path)

    def overlay(self, directory: StoreDirectory, *, marks: bool = False) -> StoreDirectory:
        """Return the directory as it will be.

        Without the store's `marks`: they contain damage that will be gone by then. What is torn
        behind them must be seen before.
        """
        hidden = set() if marks else {directory.path(OWN_DIRECTORY, PROGRESS_FILE)}
        hidden |= set(self.removed)
        vfs: Any = OverlayVfs(directory.vfs, self.changes, hidden, self.moves)
        options = {**directory.inferred, **directory.options}
        return StoreDirectory(directory.root, options, vfs)
