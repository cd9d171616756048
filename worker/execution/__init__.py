"""How requests are executed: in which order, in how many threads, joined with which others, and until when.

What is decided stands in pure modules, which take the time as an argument: :mod:`~worker.execution.queues` (who is
next) and :mod:`~worker.execution.joining` (what runs together). :mod:`~worker.execution.executor` has the threads,
:mod:`~worker.execution.batches` joins requests in front of them.
"""

from worker.execution.executor import DeadlineError, Executor, Place, QueueFullError
from worker.execution.queues import Order, Ticket

__all__ = ["DeadlineError", "Executor", "Order", "Place", "QueueFullError", "Ticket"]
