"""The two frames of RocketMQ's HA protocol, and their limits.

A slave sends reports, a master sends frames; all numbers are signed and big-endian. TCP splits and
joins both as it likes.
"""

from __future__ import annotations

from tubestore.core.layout import Field, Layout

#: Slave to master, and nothing else in this direction.
REPORT = Layout(
    "HaReport",
    8,
    (Field("offset", "i8", "Physical offset behind the slave's last byte; 0 of an empty slave."),),
)
#: Master to slave; the body follows.
FRAME_HEADER = Layout(
    "HaFrame",
    12,
    (
        Field("offset", "i8", "Physical offset of the body's first byte."),
        Field("body_size", "i4", "Bytes of the body, raw bytes of the log; 0: a heartbeat."),
    ),
)
#: The first report that asks for the broker's configuration instead of the log, and the offset of
#: the frame that answers it. Between two sides of this package: RocketMQ's master waits for another
#: report, and its slave sends no such report.
CONFIG_REQUEST = -1
#: Bytes of the largest configuration.
CONFIG_SIZE_MAX = 16 << 20
#: Bytes of the body that a master sends at a time (`haTransferBatchSize`).
TRANSFER_BATCH_SIZE = 32 * 1024
#: A frame has to fit into a real slave's buffer of 4 MiB.
BODY_SIZE_MAX = (4 << 20) - FRAME_HEADER.size
#: RocketMQ's port for this protocol (`haListenPort`).
PORT = 10912

#: Seconds without a byte to the peer after which a heartbeat is sent (`haSendHeartbeatInterval`).
HEARTBEAT_SECONDS = 5.0
#: Seconds without a byte from the peer after which a connection ends (`haHousekeepingInterval`).
SILENCE_SECONDS = 20.0
#: Seconds that a synchronous put waits for a slave (`slaveTimeout`).
SLAVE_TIMEOUT_SECONDS = 3.0
