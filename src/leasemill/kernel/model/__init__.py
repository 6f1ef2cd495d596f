"""The nouns of the contract: jobs, executions, policies, and the records of what happened to them.

Pure data. Instants are integer microseconds since the Unix epoch, durations integer microseconds whose names
end in `_us`; the kernel never asks what time it is. `Job` and `Execution` change only when an event is applied.
Other packages import these names from here, never from the parts.
"""

from __future__ import annotations

from leasemill.kernel.model.records import *
from leasemill.kernel.model.spec import *
from leasemill.kernel.model.states import *
from leasemill.kernel.model.verb import *
from leasemill.kernel.model.worker_commands import *
