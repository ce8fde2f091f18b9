"""Somebody else's code behind one guard: whatever ends it, the audit goes on to a verdict.

In Python every exception becomes a `Fault`, `SystemExit` and other `BaseException` included; only a Ctrl-C of the user
passes. The command line runs the whole audit in a process of its own (`in_own_process`), so that a program may also
leave by ``os._exit``, crash, or close what is not its own, and what it prints goes to standard error.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

from lpverify import errors
from lpverify.auditing.choices import NotEnumerable
from lpverify.core.results import Finding

PACKAGE = str(Path(errors.__file__).parent) + os.sep  # lines of this package are not the program's


class Fault(Exception):
    """A finding inside one run."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message)
        self.finding = finding


class UserInterrupt(KeyboardInterrupt):
    """Ctrl-C while an audit runs, as opposed to a KeyboardInterrupt that the audited code raises."""


def _interrupt(*_: Any) -> None:
    raise UserInterrupt


@contextmanager
def interrupts_pass() -> Iterator[None]:
    """Ctrl-C raises UserInterrupt inside. Where signals have another handler, or in another thread, nothing changes."""
    main = threading.current_thread() is threading.main_thread()
    ours = main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def guarded(passing: type[BaseException] = Fault) -> Iterator[None]:
    """What the code inside raises becomes a Fault that names the line; ``passing`` is passed on."""
    try:
        yield
    except (Fault, NotEnumerable, UserInterrupt, passing):
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            if signal.getsignal(signal.SIGINT) is not _interrupt:  # it may be the user's
                raise
        raise Fault(Finding("raised", described(error))) from error


def described(error: BaseException) -> str:
    """One line: what was raised, and where in the program."""
    every = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in every if not frame.filename.startswith((PACKAGE, "<frozen"))]
    line = f" at line {frames[0].lineno} of {frames[0].filename.rpartition('/')[2]}" if frames else ""
    try:
        text = f"{type(error).__name__}: {error}".rstrip(": ")
    except BaseException:
        text = f"{type(error).__name__}, whose text cannot be shown,"
    return errors.one_line(f"raised {text}{line}")


def in_own_process(work: Callable[[Callable[[str], None]], Any]) -> tuple[Any, str, str]:
    """``work(say)`` in a forked process with standard error as its standard output.

    Args:
        work: Called with a function that reports what begins. Its result and its exceptions must be picklable.

    Returns:
        (result, "", what was said last), or (None, how the process ended, what was said last) if it ended by itself.

    Raises:
        Exception: What ``work`` raised.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        _child(work, Connection(write, readable=False))
    os.close(write)
    said, answer, status = "", None, None
    with Connection(read, writable=False) as pipe:
        try:
            while answer is None and status is None:
                ended, code = os.waitpid(child, os.WNOHANG)
                status = code if ended else None
                while answer is None and pipe.poll(0 if ended else 0.05):
                    kind, value = pipe.recv()
                    said, answer = (value, None) if kind == "said" else (said, (kind, value))
        except Exception:  # the program has closed the pipe, or written to it
            pass
        except BaseException:
            os.kill(child, signal.SIGKILL)
            raise
        finally:
            if status is None:
                status = os.waitpid(child, 0)[1]
    if answer is None:
        code = os.waitstatus_to_exitcode(status)
        how = f"exit status {code}" if code >= 0 else f"signal {-code}, {signal.strsignal(-code)}"
        return None, f"ended its process ({how})", said
    if answer[0] == "raised":
        raise answer[1]
    return answer[1], "", said


def _child(work: Callable[[Callable[[str], None]], Any], pipe: Connection) -> NoReturn:
    """Run ``work`` and leave without what Python does at its end, such as waiting for threads of the program."""
    own = os.getpid()

    def send(kind: str, value: Any) -> None:
        if os.getpid() == own:  # the program may have forked
            pipe.send((kind, value))

    try:
        os.dup2(2, 1)
        try:
            send("result", work(lambda what: send("said", what)))
        except Exception as error:
            send("raised", error)
    finally:
        os._exit(0)
