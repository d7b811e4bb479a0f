"""One thread that makes the next batches while the consumer works.

The consumer decides what is made next and keeps the jobs in order; the thread fills them in and holds no position. So
leaving early loses nothing, an interrupt at any moment loses at most work, and a wrong batch cannot be taken for another.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

Ticket = TypeVar("Ticket")
Made = TypeVar("Made")

_JOIN_SECONDS = 5.0


class Job(Generic[Ticket, Made]):
    """One batch under way. The gate opens when it is done: then `made` holds it, or `error` what went wrong."""

    __slots__ = ("done", "error", "gate", "made", "ticket", "wanted")

    def __init__(self, ticket: Ticket) -> None:
        self.ticket = ticket
        self.made: Made | None = None
        self.error: BaseException | None = None
        self.wanted, self.done = True, False
        self.gate = threading.Lock()
        self.gate.acquire()


class Prefetcher(Generic[Ticket, Made]):
    """Makes `make(ticket)` ahead, the `depth` that follow the one asked for, in the order of the tickets.

    make: called in the thread alone. following: the ticket after a ticket, or None at the end.
    The thread starts at the first `take`, and ends at `close`, when this object is collected, or when the interpreter
    exits. A forked child starts its own. Not shared between threads that take.
    """

    def __init__(self, make: Callable[[Ticket], Made], following: Callable[[Ticket], Ticket | None], depth: int) -> None:
        self._make, self._following, self._depth = make, following, depth
        self._asked: deque[Job[Ticket, Made]] = deque()
        self._jobs: SimpleQueue[Job[Ticket, Made] | None] = SimpleQueue()
        self._stop: weakref.finalize[..., Prefetcher[Ticket, Made]] | None = None
        self._process: int | None = None  # where the thread runs

    def take(self, ticket: Ticket) -> Made:
        """What `make` gives for this ticket; asks for those that follow. An exception of `make` is raised here as it was."""
        if self._process != os.getpid():  # not yet begun, or this is a forked child, which has no threads
            self._start()
        asked = self._asked
        if not asked or asked[0].ticket != ticket:
            self._forget()
            self._ask(ticket)
        while len(asked) <= self._depth and (after := self._following(asked[-1].ticket)) is not None:
            self._ask(after)
        job = asked[0]
        if not job.done:  # an interrupt may have come between the gate and the next line
            job.gate.acquire()
        asked.popleft()
        if job.error is None:
            return job.made  # type: ignore[return-value]
        self._forget()
        error, job.error = job.error, None
        try:
            raise error
        finally:
            del error  # the traceback holds this frame: no cycle, please

    def _ask(self, ticket: Ticket) -> None:
        job: Job[Ticket, Made] = Job(ticket)
        self._jobs.put(job)  # first: a job that was kept but never sent would be waited for in vain
        self._asked.append(job)

    def _forget(self) -> None:
        """Drop what was asked for and is no longer wanted."""
        for job in self._asked:
            job.wanted = False
        self._asked.clear()

    def _start(self) -> None:
        self.close()  # what an interrupted start may have left
        self._jobs = SimpleQueue()
        # daemon: a consumer stuck at exit must not hang the interpreter; the finalizer joins it in good order.
        thread = threading.Thread(target=_run, args=(self._make, self._jobs), name="ladle-prefetch", daemon=True)
        self._stop = weakref.finalize(self, _end, thread, self._jobs)
        thread.start()
        self._process = os.getpid()

    def close(self) -> None:
        """End the thread and wait for it. Safe to call twice."""
        self._forget()
        if self._stop is not None:
            self._stop()


def _run(make: Callable[[Any], Any], jobs: SimpleQueue[Job[Any, Any] | None]) -> None:
    while _do(make, jobs):
        pass


def _do(make: Callable[[Any], Any], jobs: SimpleQueue[Job[Any, Any] | None]) -> bool:
    """One job; False at the end. A function of its own, so that nothing holds the last batch while it waits for the next."""
    job = jobs.get()
    if job is None:
        return False
    try:
        if job.wanted:
            job.made = make(job.ticket)
    except BaseException as error:  # noqa: BLE001  it is raised again where the batch is taken
        job.error = error
    job.done = True
    job.gate.release()
    return True


def _end(thread: threading.Thread, jobs: SimpleQueue[Job[Any, Any] | None]) -> None:
    with contextlib.suppress(Empty):  # what was not begun need not be made
        while True:
            jobs.get_nowait()
    jobs.put(None)
    if thread.ident is not None and thread is not threading.current_thread():
        thread.join(_JOIN_SECONDS)
