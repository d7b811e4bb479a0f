"""A call whose memory, crashes and changes stay in a process of its own; its result or its error comes back."""

from __future__ import annotations

import multiprocessing
import pickle
import signal
import threading
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

from ladle.errors import ConfigError

T = TypeVar("T")


class Died(Exception):  # noqa: N818  it says what happened
    """A child process ended without a word. args: the signal's number (negative) or the exit code."""

    def __str__(self) -> str:
        code = self.args[0]
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return f"the trial's process ended by {how}; run the step once by itself to see why"


class TooSlow(Exception):  # noqa: N818
    """A child process was not done in time. args: seconds."""

    def __str__(self) -> str:
        return f"not done in {self.args[0]:.3g} s"


def isolated(call: Callable[[], T], how: str, timeout_s: float) -> T:
    """call(), in a forked or a spawned process, or in this one ("none"); an error it raises is raised here as itself.

    "fork": a copy of this process, memory included, so nothing needs to pickle; not where CUDA has been used. "spawn": a fresh
    process to which the call is pickled. The call runs in a thread of its own, since OpenMP's threads do not survive a fork
    but belong to the thread that started them. No process is left on any way out. Raises Died, TooSlow.
    """
    if how == "none":
        return call()
    context = multiprocessing.get_context(how)
    ours, theirs = context.Pipe(duplex=False)
    target: Any = _answer if how == "fork" else _unpickle_and_answer
    process = context.Process(target=target, args=(theirs, call if how == "fork" else pickled(call)))  # type: ignore[attr-defined]
    with ours:
        try:
            with theirs, warnings.catch_warnings():
                # Python 3.12 warns of threads beside a fork; the child uses none of this process's threads or locks.
                warnings.simplefilter("ignore", DeprecationWarning)
                process.start()
            ready = wait([ours, process.sentinel], timeout_s)
            if not ready:
                raise TooSlow(timeout_s)
            try:
                answer, text = ours.recv()
            except (EOFError, ConnectionResetError):
                process.join()
                raise Died(process.exitcode) from None
        finally:
            if process.pid is not None:
                process.kill()
                process.join()
                process.close()
    if isinstance(answer, BaseException):
        answer.add_note(f"in the trial's process:\n{text}")
        raise answer
    return answer  # type: ignore[no-any-return]


def pickled(call: Callable[[], Any]) -> bytes:
    """The bytes that a spawned process is given; tensors by value. Raises ConfigError naming what does not pickle."""
    try:
        return pickle.dumps(call)
    except (pickle.PicklingError, AttributeError, TypeError, RuntimeError) as error:
        raise ConfigError(
            f"isolate: expected what pickle can send to a spawned process, found {error}; define it at the top of a module, "
            "or isolate='fork' (on the CPU), or isolate='none' with keep=[model, optimizer]"
        ) from error


def _unpickle_and_answer(reply: Connection, sent: bytes) -> None:
    try:
        call = pickle.loads(sent)  # noqa: S301  its own parent wrote it
    except Exception as error:  # noqa: BLE001  whatever the caller's modules raise
        found = f"{type(error).__name__}: {error}"
        call = _Fails(ConfigError(f"isolate: expected a spawned process to import the step, found {found}; put it into a module"))
    _answer(reply, call)


class _Fails:
    def __init__(self, error: Exception) -> None:
        self.error = error

    def __call__(self) -> None:
        raise self.error


def _answer(reply: Connection, call: Callable[[], Any]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, which ends this process

    def work() -> None:
        try:
            answer: Any = call()
            text = ""
        except BaseException as error:  # noqa: BLE001  it is raised again in the parent
            answer, text = error, traceback.format_exc()
        reply.send(_sendable(answer, text))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def _sendable(answer: Any, text: str) -> tuple[Any, str]:
    """An error that does not survive pickling goes as its words."""
    try:
        pickle.loads(pickle.dumps(answer))  # noqa: S301  written on this line
    except Exception:  # noqa: BLE001  an exception's __init__ may raise anything
        return RuntimeError(f"{type(answer).__name__}: {answer}"), text
    return answer, text
