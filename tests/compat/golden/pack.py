"""Make the golden archives from a directory of golden stores.

    python tests/compat/golden/pack.py SOURCE [--into DIRECTORY]

SOURCE holds ``tubemq/<version>/<scenario>/`` and ``rocketmq/<version>/<scenario>/`` with the files
that ``README.md`` beside this script describes. One archive a version comes out: an xz stream
around a tar with

- ``manifest.jsonl``, the first member: a line for every file and every empty directory;
- ``<scenario>/<path>``: the files. What was compressed or archived inside a scenario is stored
  plain, because only then does one scenario's data compress against another's, and there is
  nothing to unpack twice.

A sparse file's member holds its data only; the manifest's ``extents`` say where each piece belongs.
So a commit log of 1 GiB costs what its messages cost, here and when it is unpacked, and any tar
reader can still list the archive.

The same source gives the same bytes: names are sorted and the tar headers carry no times. The times
that matter are in the manifest. Read next: ``tests/support/golden.py``, the reader.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import lzma
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

VERSIONS = (("tubemq", "1.2.0"), ("rocketmq", "4.9.8"), ("rocketmq", "5.3.3"))

BLOCK_BYTES = 64 * 1024
"""A block of this size that holds only zeros becomes a hole. Smaller runs compress well anyway."""

DICTIONARY_BYTES = 32 * 1024 * 1024
"""Larger than any of the tars: every scenario sees every other. Unpacking needs as much memory."""

Row = dict[str, Any]


@dataclass
class Packed:
    """What is to be written for one file: its manifest row and the bytes that are not holes."""

    row: Row
    data: bytearray = field(default_factory=bytearray)


def main() -> None:
    """Pack every version and print the table that ``README.md`` shows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("--into", type=Path, default=Path(__file__).parent)
    arguments = parser.parse_args()
    for system, version in VERSIONS:
        archive = arguments.into / f"{system}-{version}.tar.xz"
        scenarios = pack_version(arguments.source / system / version, archive)
        print(readme_row(archive, scenarios))


def readme_row(archive: Path, scenarios: int) -> str:
    """Describe an archive by what tells it from a stale or damaged one."""
    content = archive.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    return f"| `{archive.name}` | {scenarios} | {len(content)} | `{digest}` |"


def pack_version(source: Path, archive: Path) -> int:
    """Write one archive; return how many scenarios are in it."""
    scenarios = sorted(path for path in source.iterdir() if path.is_dir())
    if not scenarios:
        raise SystemExit(f"no scenarios in {source}")
    files = [packed for scenario in scenarios for packed in pack_scenario(scenario)]
    manifest = "".join(json.dumps(packed.row, ensure_ascii=False) + "\n" for packed in files)
    with (
        lzma.open(archive, "w", filters=[xz_filter()]) as xz,
        tarfile.open(fileobj=xz, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        add_member(tar, "manifest.jsonl", manifest.encode())
        for packed in files:
            if "dir" not in packed.row:
                add_member(tar, f"{packed.row['scenario']}/{packed.row['path']}", packed.data)
    return len(scenarios)


def xz_filter() -> dict[str, int]:
    """Preset 9e with the dictionary cut to what the archives need."""
    preset = 9 | lzma.PRESET_EXTREME
    return {"id": lzma.FILTER_LZMA2, "preset": preset, "dict_size": DICTIONARY_BYTES}


def add_member(tar: tarfile.TarFile, name: str, data: bytes | bytearray) -> None:
    """Add a file whose header says nothing but its name and size."""
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


def pack_scenario(scenario: Path) -> list[Packed]:
    """Read a scenario and compare it with its lists: damage is to be found here, not in a test."""
    found = {packed.row["path"]: packed for packed in read_scenario(scenario)}
    for tree, rows in (("store", "files.jsonl"), ("slave", "files-slave.jsonl")):
        if rows in found:
            apply_listing(found, tree, [json.loads(line) for line in found[rows].data.splitlines()])
    for path, packed in found.items():
        packed.row = {"scenario": scenario.name, **packed.row, "path": path}
    return [found[path] for path in sorted(found)]


def apply_listing(found: dict[str, Packed], tree: str, listing: list[Row]) -> None:
    """Take times and empty directories from a list of files; refuse a tree that is not that."""
    listed = {f"{tree}/{row['path']}": row for row in listing}
    for path, row in listed.items():
        packed = found.setdefault(path, Packed({"dir": True})) if row.get("dir") else found[path]
        for name in ("size", "sha256"):
            if name in row and row[name] != packed.row[name]:
                raise SystemExit(f"{path}: {name} is {packed.row[name]}, listed is {row[name]}")
        if "mtimeMs" in row:
            packed.row["mtimeMs"] = row["mtimeMs"]
    unlisted = [path for path in found if path.startswith(f"{tree}/") and path not in listed]
    if unlisted:
        raise SystemExit(f"not listed: {unlisted}")


def read_scenario(scenario: Path) -> Iterator[Packed]:
    """Yield a scenario's files and empty directories, compressed ones under their plain names."""
    for path in sorted(scenario.rglob("*")):
        name = path.relative_to(scenario).as_posix()
        if path.is_dir():
            if not any(path.iterdir()):
                yield Packed({"path": f"{name}/", "dir": True})
        elif name == "store.tar.gz":
            yield from read_tar(path)
        elif name.endswith(".jsonl.gz"):
            with gzip.open(path) as file:
                yield read_file(name.removesuffix(".gz"), file)
        else:
            with path.open("rb") as file:
                yield read_file(name, file)


def read_tar(path: Path) -> Iterator[Packed]:
    """Yield the tree inside a ``store.tar.gz``; tarfile gives holes of sparse members as zeros."""
    with tarfile.open(path) as tar:
        members = tar.getmembers()
        parents = {str(Path(member.name).parent) for member in members}
        for member in members:
            if member.isdir():
                if member.name not in parents:
                    yield Packed({"path": f"{member.name}/", "dir": True})
                continue
            file = tar.extractfile(member)
            if file is None:
                raise SystemExit(f"{path}: {member.name} is neither a file nor a directory")
            yield read_file(member.name, file)


def read_file(name: str, file: IO[bytes] | gzip.GzipFile) -> Packed:
    """Read a file block by block, leaving out the blocks that hold nothing but zeros."""
    packed = Packed({"path": name})
    digest = hashlib.sha256()
    extents: list[list[int]] = []
    size = 0
    while block := file.read(BLOCK_BYTES):
        digest.update(block)
        if block.count(0) < len(block):
            add_extent(extents, size, len(block))
            packed.data += block
        size += len(block)
    packed.row |= {"size": size, "sha256": digest.hexdigest()}
    if len(packed.data) < size:
        packed.row["extents"] = extents
        packed.row["dataSha256"] = hashlib.sha256(packed.data).hexdigest()
    return packed


def add_extent(extents: list[list[int]], start: int, length: int) -> None:
    """Note a piece of data, joined to the one before it where they touch."""
    if extents and sum(extents[-1]) == start:
        extents[-1][1] += length
    else:
        extents.append([start, length])


if __name__ == "__main__":
    main()
