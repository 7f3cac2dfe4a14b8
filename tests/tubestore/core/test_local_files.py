"""What the system's files know of their file system."""

from __future__ import annotations

from pathlib import Path

import pytest

from tubestore.core.local_files import network_kind
from tubestore.core.vfs import OsVfs

MOUNTS = """\
24 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
36 24 0:45 / /home rw,nosuid shared:9 master:2 - nfs4 server:/home rw,vers=4.2
37 24 0:46 / /mnt/far rw - fuse.sshfs me@there: rw
38 24 0:47 / /mnt/near rw - fuse.ntfs /dev/sdb1 rw
a line of another kind
"""


@pytest.mark.parametrize(
    ("device", "kind"),
    [("254:0", ""), ("0:45", "nfs4"), ("0:46", "fuse.sshfs"), ("0:47", ""), ("9:9", "")],
)
def test_network_file_systems_are_known_by_their_mounts(device: str, kind: str) -> None:
    assert network_kind(MOUNTS, device) == kind


def test_the_directory_of_a_test_is_on_this_machine(tmp_path: Path) -> None:
    file_system = OsVfs().file_system(str(tmp_path))
    assert file_system.network_kind() == ""
    file_system.close()
