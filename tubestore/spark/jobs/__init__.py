"""Jobs over whole stores: each is planned on the driver, worked on a split a task, and finished.

Payload stays in the tasks: what comes back to the driver is a small row a split. So a job with
an id can be taken up again: splits with rows in its journal are not worked on a second time.

| module | what |
| --- | --- |
| `running` | waves of tasks, journals, progress, errors |
| `publishing` | jobs that stage files and publish them: what was staged is not staged again |
| `audit` | entries and records against each other, checksums |
| `stats` | messages, bytes and rates by partition and hour, from the index alone |
| `parquet` | export to Parquet files, import from them |
| `doctor` | the store as every executor sees it |
| `compact` | a copy with what is wanted, in a new store |

The kernels import no Spark; only `running` is handed a session.
"""

from __future__ import annotations
