"""The command line: one file a command. Heavy imports are inside functions, so that ``--help`` is fast.

Exit codes: 0 done, 1 the answer is "no" (`audit`), 2 bad input, 70 a defect of this program, 130 interrupted, 141 the
reader of standard output closed it. An error is one line on standard error, ``lpverify: error: ...``, never a traceback
(set ``LPVERIFY_DEBUG=1`` to see it).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from lpverify.cli import advise, audit, bound, decode, examples, explain, extract, figures, random, solve, sweep
from lpverify.cli.options import CommandWithVerifiers, expand
from lpverify.errors import InputError, one_line
from lpverify.files import provenance

BAD_INPUT, INTERNAL, INTERRUPTED, BROKEN_PIPE = 2, 70, 130, 141


class OneLineErrors(TyperGroup):
    """A command group that reports every error as one line and an exit code."""

    def main(self, args: Sequence[str] | None = None, *others: Any, **kwargs: Any) -> Any:
        message: str | None = None
        _prepare_streams()
        try:
            with _termination_as_interruption():
                code = super().main(args, **kwargs | {"prog_name": "lpverify", "standalone_mode": False})
                sys.stdout.flush()
        except (KeyboardInterrupt, typer.Abort):
            code = INTERRUPTED
        except BrokenPipeError:
            _silence(sys.stdout)
            code = BROKEN_PIPE
        except Exception as error:
            if os.environ.get("LPVERIFY_DEBUG"):
                raise
            message, code = _describe(error)
        message = "interrupted" if code == INTERRUPTED else message
        if message is not None:
            print(f"lpverify: error: {one_line(message)}", file=sys.stderr)
        sys.exit(code or 0)

    def invoke(self, ctx: Any) -> Any:
        """Run the command. A closed pipe has its own exit code; the base class would exit with 1."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            _silence(sys.stdout)
            raise typer.Exit(BROKEN_PIPE) from None


@contextmanager
def _termination_as_interruption() -> Iterator[None]:
    """On SIGTERM end as on Ctrl-C, so that rows stay whole, temporary files are removed and workers end."""
    if threading.current_thread() is not threading.main_thread():  # which has no signals
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def _describe(error: Exception) -> tuple[str, int]:
    if hasattr(error, "format_message"):  # typer's errors about options and arguments
        return error.format_message(), BAD_INPUT
    if isinstance(error, InputError):
        return str(error), BAD_INPUT
    if isinstance(error, OSError):
        file = f"{error.filename}: " if error.filename else ""
        return f"{file}{error.strerror or error}", BAD_INPUT
    if isinstance(error, MemoryError):
        return "out of memory; use a smaller vocabulary, depth or number of paths", BAD_INPUT
    return f"internal error, please report it: {type(error).__name__}: {error}", INTERNAL


def _prepare_streams() -> None:
    """Any console: a closed stream is like /dev/null, what an encoding does not have is escaped, pictures need none."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:  # a file of ours must not become standard output
        pass
    os.close(descriptor)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))
        elif hasattr(getattr(sys, name), "reconfigure"):
            getattr(sys, name).reconfigure(errors="backslashreplace")
    os.environ["MPLBACKEND"] = "agg"


def _silence(stream: Any) -> None:
    """Drop what is still buffered; flushing it at exit would raise."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    except (OSError, ValueError):
        pass


def _version(asked: bool) -> None:
    if asked:
        print("lpverify", provenance()["lpverify"] or "(not installed)")
        raise typer.Exit


app = typer.Typer(
    cls=OneLineErrors,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
VERSION = typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")


@app.callback(invoke_without_command=True)
def root(context: typer.Context, version: Annotated[bool, VERSION] = False) -> None:
    """How good can speculative-decoding verification be, and how close does an algorithm get?"""
    if context.invoked_subcommand is None:
        print(context.get_help())


WITH_VERIFIERS = (solve, sweep, audit, decode, bound, advise)
for module in (examples, solve, random, explain, sweep, audit, decode, extract, bound, advise, figures):
    kind = CommandWithVerifiers if module in WITH_VERIFIERS else TyperCommand
    app.command(module.__name__.rpartition(".")[2], cls=kind)(expand(module.run))


def main() -> None:
    """The ``lpverify`` program."""
    app()
