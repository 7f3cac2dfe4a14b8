"""Bodies that the producer compressed, unpacked for whoever looks; the store never does (§1.3).

How a body was packed stands in its record's sysFlag: zlib, or since 5.0 LZ4 (frames) or ZSTD.
Pure functions; thread-safe.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pyarrow as pa

from rocketcompat.formats import (
    COMPRESSION_LZ4,
    COMPRESSION_ZSTD,
    SYS_FLAG_COMPRESSED,
    SYS_FLAG_COMPRESSION_MASK,
)

#: A body that would take more is left as it is: a few bytes can say that they are gigabytes.
UNPACKED_SIZE_MAX = 256 << 20
_ARROW_CODECS = {COMPRESSION_LZ4: "lz4", COMPRESSION_ZSTD: "zstd"}


def unpack_body(body: bytes, sys_flag: int, size_max: int = UNPACKED_SIZE_MAX) -> bytes | None:
    """Return a body as the producer had it; None if it says that it is compressed and is not.

    >>> unpack_body(zlib.compress(b"hello"), SYS_FLAG_COMPRESSED), unpack_body(b"hello", 0)
    (b'hello', b'hello')
    """
    if not sys_flag & SYS_FLAG_COMPRESSED:
        return body
    codec = _ARROW_CODECS.get(sys_flag & SYS_FLAG_COMPRESSION_MASK)
    try:
        if codec is None:
            unpacker = zlib.decompressobj()
            found = unpacker.decompress(body, size_max)
            return found if unpacker.eof else None
        with pa.CompressedInputStream(pa.BufferReader(body), codec) as stream:
            found = stream.read(size_max + 1)
            return found if len(found) <= size_max else None
    except (zlib.error, OSError, pa.ArrowException):
        return None


def unpack_bodies(bodies: pa.LargeBinaryArray, sys_flags: Any) -> tuple[pa.LargeBinaryArray, Any]:
    """Return a column of bodies with the compressed ones unpacked, and a mask of those that failed.

    What cannot be unpacked stays as it is.
    """
    failed = np.zeros(len(bodies), bool)
    packed = np.flatnonzero(sys_flags & SYS_FLAG_COMPRESSED)
    if len(packed) == 0:
        return bodies, failed
    stored = bodies.take(pa.array(packed)).to_pylist()
    texts = [unpack_body(b, f) for b, f in zip(stored, sys_flags[packed].tolist(), strict=True)]
    failed[packed] = [text is None for text in texts]
    own = [raw if text is None else text for raw, text in zip(stored, texts, strict=True)]
    places = np.arange(len(bodies))
    places[packed] = len(bodies) + np.arange(len(packed))
    joined = pa.concat_arrays([bodies, pa.array(own, pa.large_binary())])
    return joined.take(pa.array(places)), failed
