"""Putting log files back that hold the records of another place: what goes where. Reads only.

A file goes to the place of its records if no other file claims that place. If two do, neither is
touched, nor is the file that they would replace: a person has to decide which one is right.

While files are put back their bytes have a second name in a directory beside the log's. What a
crash leaves there is found by the next plan.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from rocketcompat.commitlog.misplaced import belongs_at
from rocketcompat.commitlog.walk import find_in_file
from rocketcompat.files.mapped_file import MappedFile
from rocketcompat.formats import offset_name, parse_offset_name
from rocketcompat.inspect.directory import StoreDirectory
from tubestore.core.quarantine import Action
from tubestore.core.trees import files_by_start

#: Behind the name of a log's directory: where files are held while they are put back.
HELD_SUFFIX = ".misplaced"


@dataclass(slots=True)
class Places:
    """Where files of a log go."""

    #: The path of each file that gets the bytes of another, and that other's path.
    moves: dict[str, str] = field(default_factory=dict)
    actions: list[Action] = field(default_factory=list)
    #: Physical offsets of files that stay as they are, since their right content is not known.
    unclear: set[int] = field(default_factory=set)
    #: Directories that contain nothing needed any more.
    left: list[str] = field(default_factory=list)


def plan_places(directory: StoreDirectory, wrong: set[str]) -> Places:
    """Return which files are put back; one of a `wrong` length is not."""
    places = Places()
    there = {file.file_from_offset: file for file in directory.log.files}
    held = _held(directory)
    claims: dict[int, list[str]] = {place: [path] for place, path in held.items()}
    for damage in directory.misplaced:
        assert damage.belongs is not None
        if damage.belongs not in held:
            claims.setdefault(damage.belongs, []).append(damage.path)
    for place, paths in sorted(claims.items()):
        if place in there and _holds_its_own(there[place]):
            continue  # the others are copies
        if len(paths) > 1 or paths[0] in wrong or _path_of(directory, place) in wrong:
            _leave(places, directory, place, paths)
            continue
        target = _path_of(directory, place)
        places.moves[target] = paths[0]
        size = directory.log.file_size
        message = f"its records are in {paths[0]}: that file gets this name"
        places.actions.append(Action(target, "put back", 0, size, message))
    if not places.moves:  # else they go when all is put back
        places.left = _held_directories(directory)
    return places


def _leave(places: Places, directory: StoreDirectory, place: int, paths: list[str]) -> None:
    """Note that it is not known which file belongs to a place; none of them is touched."""
    for path in paths:
        others = " and ".join(other for other in paths if other != path) or "its length is wrong"
        message = f"holds records of offset {place}, and so does {others}: put the right one back"
        if len(paths) == 1:
            message = f"holds records of offset {place}, and a length is wrong: put it back"
        places.actions.append(Action(path, "leave", 0, directory.log.file_size, message))
        start = parse_offset_name(os.path.basename(path))
        assert start is not None
        places.unclear.add(start)
    places.unclear.add(place)


def _held_directories(directory: StoreDirectory) -> list[str]:
    """Return the directories beside the log's in which an interrupted run held files."""
    paths = [path + HELD_SUFFIX for path in directory.log.directories]
    return [path for path in paths if directory.vfs.exists(path)]


def _held(directory: StoreDirectory) -> dict[int, str]:
    """Return what an interrupted run left: files by the place of their records."""
    found: dict[int, str] = {}
    vfs, size = directory.vfs, directory.log.file_size
    for path in _held_directories(directory):
        for start, held, length in files_by_start(vfs, path, parse_offset_name):
            if length != size:
                continue
            file = MappedFile(vfs.open(held, writable=False), start, size, size)
            if belongs_at(file) is None:
                found[start] = file.path
            file.close()
    return found


def _holds_its_own(file: MappedFile) -> bool:
    """True if a file holds a sound record of its own place."""
    start = file.file_from_offset
    return find_in_file(file, 0, file.wrote_position, start.__add__) is not None


def _path_of(directory: StoreDirectory, place: int) -> str:
    """Return the path of the log's file that begins at a physical offset."""
    file = directory.log.find(place)
    return (
        file.path if file is not None else os.path.join(directory.log.directory, offset_name(place))
    )
