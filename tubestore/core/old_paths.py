"""Former names of modules, keywords and attributes: they work for one release, with a warning."""

from __future__ import annotations

import functools
import importlib
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from importlib.abc import Loader, MetaPathFinder

    class _Finder(MetaPathFinder, Loader):
        pass

else:
    _Finder = object  # importing importlib.abc takes half of the time of importing a package

#: Old and new path of each module of the engine, below the package.
ENGINE = """
accepted cli.kit.accepted
adoption shard.message_store
arguments values
attributes record.attributes
bulk_loads store.publish
cache_formats segments.cache_formats
check offline.check
checkpoint segments.checkpoint
cli.kit.times values
chosen_shards journal.chosen_shards
columns record.columns
commit_records staging.commit_records
decode record.decode
digest_check offline.digest_check
double_buffer shard.write_buffer
dump offline.dump
entry_rows reading.sources
entry_sources reading.sources
evidence record.evidence
file_store segments.file_store
filenames record.names
findings offline.findings
formats record.layouts
found_records record.locate
get_messages reading.tubemq_reads
group_commit core.group_commit
housekeeping store.housekeeping
index_caches segments.lookup
index_lists segments.lookup
index_rebuild offline.index_rebuild
ingest record.ingest
inspection segments.inspection
job_files staging.job_files
job_ids staging.job_ids
job_recovery staging.roll_forward
journal_overlay journal.journal_overlay
journalled journal.journalled
journalled_shard shard.message_store
kernels core.kernels
layout core.layout
leases store.leases
left_messages journal.left_messages
manager store.manager
many_topics store.append
mem_store shard.mem_store
memory_pool core.memory_pool
message_store shard.message_store
open_shards store.opening
open_topics store.topics
os_vfs core.local_files
partition_index segments.postings
partition_totals segments.summaries
payload_columns record.payloads
pending_batches journal.pending_batches
placing staging.placing
positions reading.positions
publish store.publish
quantities values
quarantine core.quarantine
read_path reading.view
reconcile segments.reconcile
record_search record.search
records record.records
recovery segments.recovery
redo journal.redo
removal segments.file_store
repair offline.repair
retention store.retention
root_journal journal.root_journal
segment segments.segment
segment_digests segments.digests
segment_list segments.segment_list
selection reading.selection
selection_many reading.selection
shard_bytes segments.shard_bytes
shard_files segments.listing
shard_reader shard.reader
shard_repair offline.shard_repair
shard_sync shard.durable_files
sound_rows offline.sound_rows
spark.intake spark.kit.intake
spark.java spark.kit.java
spark.jobs.publishing spark.kit.publishing
spark.jobs.running spark.kit.running
spark.loads spark.kit.loads
spark.options spark.kit.options
spark.settings spark.kit.settings
spark.shapes spark.kit.shapes
spark.sink spark.kit.sink
spark.tasks spark.kit.tasks
spark.triggers spark.kit.triggers
spark.worker_process spark.kit.running
spark.write_options spark.kit.write_options
state_check offline.own_files
state_files record.state_files
state_repair offline.own_repair
statistics shard.statistics
store_directory store.directory
task_staging staging.writer
time_index segments.summaries
topic store.topic
topic_reads store.topic_reads
topic_registry store.topics
topic_settings store.topics
topic_shards store.topic_shards
trash core.trash
verdicts segments.inspection
vfs core.vfs
workers shard.workers
"""


class OldPaths(_Finder):
    """Finds the modules of one package under their old paths; asked after all other finders."""

    def __init__(self, package: str, moved: str) -> None:
        self._package, self._moved = package + ".", moved
        self._table: dict[str, str] | None = None

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a spec for an old path, None for any other name."""
        if not fullname.startswith(self._package):
            return None
        if self._table is None:
            pairs = (line.split() for line in self._moved.split("\n") if line)
            self._table = {self._package + old: self._package + new for old, new in pairs}
        return ModuleSpec(fullname, self) if fullname in self._table else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module itself, so that its classes are the same under both paths."""
        assert self._table is not None
        new = self._table[spec.name]
        warnings.warn(
            f"{spec.name} is now {new}; the old path goes with the next release",
            DeprecationWarning,
            stacklevel=2,
        )
        module = importlib.import_module(new)
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Give the module its own spec back: the import system has set that of the old path."""
        spec = module.__spec__
        assert spec is not None
        if spec.loader is self:
            module.__spec__ = spec.loader_state


def keep(package: str, moved: str) -> None:
    """Have a package's modules found under their old paths, too."""
    sys.meta_path.append(OldPaths(package, moved))


_Given = ParamSpec("_Given")
_Answer = TypeVar("_Answer")


class FormerName:
    """The former name of an attribute: it has the value of the new one, with a warning.

    Used in a class body: `due = FormerName("due_ms")`.
    """

    def __init__(self, new: str) -> None:
        self._new, self._name = new, ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = f"{owner.__name__}.{name}"

    def __get__(self, holder: object, owner: type | None = None) -> Any:
        if holder is None:
            return self
        text = f"{self._name} is named {self._new}; the next release drops the former name"
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        return getattr(holder, self._new)


def renamed_keyword(
    old: str, new: str
) -> Callable[[Callable[_Given, _Answer]], Callable[_Given, _Answer]]:
    """Let a public function take a keyword by its former name for one release, with a warning."""

    def with_old_name(call: Callable[_Given, _Answer]) -> Callable[_Given, _Answer]:
        @functools.wraps(call)
        def called(*args: _Given.args, **named: _Given.kwargs) -> _Answer:
            if old in named:
                text = f"{call.__name__}({old}=…) is named {new}; the next release drops {old}"
                warnings.warn(text, DeprecationWarning, stacklevel=2)
                named[new] = named.pop(old)
            return call(*args, **named)

        return called

    return with_old_name
