"""The contenders by name, and those of callers: a module on the path, or a file."""

from __future__ import annotations

import importlib
import sys
from functools import cache
from pathlib import Path
from typing import Any

from bench.layouts.capabilities import Unavailable, checked

#: Short name → where the class is. Those in `real` run in a virtual machine of Java.
CONTENDERS = {
    "tubestore": "bench.layouts.layout:TopicSharded",
    "rocketcompat": "bench.layouts.layout:SingleLog",
    "rocketcompat-tube": "bench.layouts.layout:SingleLogAndShards",
    "rocketcompat-mapped": "bench.layouts.layout:MappedSingleLog",
    "rocketcompat-pool": "bench.layouts.layout:PooledSingleLog",
    "kafka-format": "bench.layouts.kafka_format:KafkaFormat",
    "raw-file": "bench.layouts.raw:RawFile",
    "raw-map": "bench.layouts.raw:MappedFile",
    "random-writes": "bench.layouts.raw:RandomWrites",
    "lmdb": "bench.layouts.peers:Lmdb",
    "sqlite": "bench.layouts.peers:Sqlite",
    "rocksdict": "bench.layouts.peers:Rocksdict",
    "kafka-3.9": "bench.real.contenders:Kafka",
    "rocketmq-4.9.8": "bench.real.contenders:RocketMQ498",
    "rocketmq-5.3.3": "bench.real.contenders:RocketMQ533",
    "tubemq": "bench.real.contenders:TubeMQ",
}
REAL = frozenset({"kafka-3.9", "rocketmq-4.9.8", "rocketmq-5.3.3", "tubemq"})


def contender(which: Any) -> Any:
    """Return a contender by its name, as `module:Class` or `file.py:Class`, or the class itself."""
    found = named(CONTENDERS.get(which, which)) if isinstance(which, str) else which
    return checked(found)


def named(reference: str) -> Any:
    """Import `package.module:Name` or `path/file.py:Name`."""
    module, colon, attribute = reference.rpartition(":")
    if not colon:
        known = ", ".join(CONTENDERS)
        raise Unavailable(f"{reference!r}: name one of {known}, or a class as module:Class")
    try:
        owner = _from_file(module) if module.endswith(".py") else importlib.import_module(module)
        return getattr(owner, attribute)
    except Unavailable:
        raise
    except Exception as error:  # whatever the module does
        raise Unavailable(f"{reference}: {type(error).__name__}: {error}") from error


@cache
def _from_file(path: str) -> Any:
    """Import a file as a module of its name; its folder is on the path, for other processes too."""
    file = Path(path).resolve()
    if not file.is_file():
        raise Unavailable(f"{path}: there is no such file")
    sys.path.insert(0, str(file.parent))
    module = importlib.import_module(file.stem)
    if Path(module.__file__ or "").resolve() != file:
        raise Unavailable(f"{path}: another module is named {file.stem!r}; rename the file")
    return module
