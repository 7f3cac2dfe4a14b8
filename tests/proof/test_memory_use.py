"""What is kept in the page cache, which the system takes back, and what is a process's own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import REPOSITORY

#: Writes and scans a log of 320 MiB with 160 MiB of its own beside what the imports took.
WITH_LITTLE_MEMORY = """
import resource, sys
import rocketcompat
from rocketcompat import Message, MessageStoreConfig

STRUCTURES = frozenset({"consume_queue", "index"})
CONFIG = MessageStoreConfig(mapped_file_size_commit_log=16 << 20, layouts=STRUCTURES)
body = bytes(range(256)) * 256

def own_bytes():
    status = open("/proc/self/status").read()
    return int(status.split("VmData:")[1].split()[0]) * 1024

with rocketcompat.open(sys.argv[1] + "/warm", "w", CONFIG) as store:
    store.put_message(Message("T", body, keys="k"))
    store.flush()
    list(store.scan())
limit = own_bytes() + (160 << 20)
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
with rocketcompat.open(sys.argv[1] + "/store", "w", CONFIG) as store:
    for number in range(5120):
        put = store.put_message(Message("T", body, keys=f"k{number}"))
    store.flush()
    assert store.max_physical_offset > 320 << 20
    rows = sum(batch.num_rows for batch in store.scan(verify=True))
    assert rows == 5120, rows
    assert store.look_message(put.physical_offset).body == body
try:
    bytearray(200 << 20)
except MemoryError:
    print("bounded")
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA counts maps on Linux only")
def test_a_store_is_larger_than_the_memory_that_its_process_may_have(tmp_path: Path) -> None:
    """MEM-05: files are read and written through the page cache, which the system manages."""
    done = subprocess.run(
        [sys.executable, "-c", WITH_LITTLE_MEMORY, str(tmp_path)],
        capture_output=True, text=True, cwd=REPOSITORY, timeout=300, check=False,
        env={"PYTHONPATH": str(REPOSITORY), "ARROW_DEFAULT_MEMORY_POOL": "system"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "bounded\n"
