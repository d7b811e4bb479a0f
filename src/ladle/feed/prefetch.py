"""One thread that makes the next batches while the consumer works.

Tickets go one way, batches the other, through two SimpleQueues. The thread knows nothing of the feed: the consumer
decides what is made next, so the thread holds no position, and leaving early loses nothing.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

Ticket = TypeVar("Ticket")
Made = TypeVar("Made")

_STOP = object()
_JOIN_SECONDS = 5.0


class Prefetcher(Generic[Ticket, Made]):
    """Makes `make(ticket)` ahead, up to `depth` at once, in the order of the tickets.

    make: called in the thread alone. following: the ticket after a ticket, or None at the end.
    The thread starts at the first `take`, and ends at `close`, when this object is collected, or when the interpreter exits.
    """

    def __init__(self, make: Callable[[Ticket], Made], following: Callable[[Ticket], Ticket | None], depth: int) -> None:
        self._make, self._following, self._depth = make, following, depth
        self._asked: deque[Ticket] = deque()
        self._tickets: SimpleQueue[object] = SimpleQueue()
        self._batches: SimpleQueue[tuple[Made | None, BaseException | None]] = SimpleQueue()
        self._stop: weakref.finalize[..., Prefetcher[Ticket, Made]] | None = None
        self._process = os.getpid()

    def take(self, ticket: Ticket) -> Made:
        """The batch of this ticket; asks for the following ones. An exception of `make` is raised here as it was."""
        if self._process != os.getpid():  # a forked child has the queues but not the thread
            self.__init__(self._make, self._following, self._depth)  # type: ignore[misc]
        if self._stop is None:
            self._start()
        if not self._asked or self._asked[0] != ticket:
            self._forget()
            self._ask(ticket)
        self._ask_ahead(self._asked[-1], self._depth)
        made, error = self._batches.get()
        self._asked.popleft()
        if error is not None:
            self._forget()
            try:
                raise error
            finally:
                error = None  # the traceback holds this frame: no cycle, please
        self._ask_ahead(self._asked[-1] if self._asked else ticket, self._depth)
        return made  # type: ignore[return-value]

    def _ask(self, ticket: Ticket) -> None:
        self._asked.append(ticket)
        self._tickets.put(ticket)

    def _ask_ahead(self, last: Ticket, count: int) -> None:
        """Ask for what follows `last`, until `count` batches are under way."""
        while len(self._asked) < count and (after := self._following(last)) is not None:
            self._ask(after)
            last = after

    def _forget(self) -> None:
        """Drop what was asked for and is no longer wanted."""
        while self._asked:
            self._batches.get()
            self._asked.popleft()

    def _start(self) -> None:
        # daemon: a consumer stuck at exit must not hang the interpreter; the finalizer joins it in good order.
        thread = threading.Thread(
            target=_run, args=(self._make, self._tickets, self._batches), name="ladle-prefetch", daemon=True
        )
        thread.start()
        self._stop = weakref.finalize(self, _end, thread, self._tickets)

    def close(self) -> None:
        """End the thread and wait for it. Safe to call twice."""
        if self._stop is not None and self._process == os.getpid():
            self._stop()
        self._asked.clear()


def _run(
    make: Callable[[Ticket], Made],
    tickets: SimpleQueue[object],
    batches: SimpleQueue[tuple[Made | None, BaseException | None]],
) -> None:
    while (ticket := tickets.get()) is not _STOP:
        try:
            batches.put((make(ticket), None))  # type: ignore[arg-type]
        except BaseException as error:  # noqa: BLE001  it is raised again where the batch is taken
            batches.put((None, error))


def _end(thread: threading.Thread, tickets: SimpleQueue[object]) -> None:
    with contextlib.suppress(Empty):  # what was not begun need not be made
        while True:
            tickets.get_nowait()
    tickets.put(_STOP)
    if thread is not threading.current_thread():
        thread.join(_JOIN_SECONDS)
