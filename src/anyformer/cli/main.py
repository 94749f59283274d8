"""`anyformer VERB TARGET [key=value ...]`: imports and runs one verb, and turns exceptions into exit codes."""

import contextlib
import importlib
import io
import os
import pkgutil
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Annotated, Any, NoReturn, cast, get_args

import typer
from typer.core import TyperGroup
from typer.main import get_command

import anyformer
from anyformer.cli import verbs
from anyformer.cli.output.screen import Panel, complain, visible
from anyformer.errors import INTERRUPTED, AnyformerError, Interrupted, memory_errors, of_os_error

HELP = """Build sequence models from interchangeable parts, count their cost, train, compare and inspect them."""
EPILOG = """[dim]Start here:[/dim]  anyformer train notes.txt

[dim]Help for one verb:[/dim]  anyformer help train"""

# typer does not export its UsageError: it is the base class of BadParameter
UsageError = cast(type[Exception], typer.BadParameter.__base__)


def enter() -> NoReturn:
    """Entry point of the shell command. A second Ctrl-C during shutdown is ignored."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # a command in the background may ignore Ctrl-C
        signal.signal(signal.SIGINT, _interrupt)
    try:
        code = main()
    except KeyboardInterrupt:
        code = _report_interrupt()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(code)


def main(argv: list[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    debug = "--debug" in options
    arguments[: len(options)] = [option for option in options if option != "--debug"]
    if arguments[:1] == ["help"]:  # anyformer help VERB
        arguments = [*arguments[1:], "--help"]
    if os.environ.get("COLUMNS") == "0":  # a terminal of unknown width; rich would print nothing
        del os.environ["COLUMNS"]
    for stream in (sys.stdout, sys.stderr):  # replace characters that the terminal cannot encode
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _warn  # type: ignore[assignment]  # _warn takes its arguments as *_
            with memory_errors():
                code = _run(arguments)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return _report_interrupt()
    except BrokenPipeError:  # the reader of stdout has closed the pipe, such as head
        _silence()
        return 0
    except Exception as error:
        if debug:
            traceback.print_exc()
        code = _report(error)
        try:
            sys.stdout.flush()
        except OSError:  # output that could not be written would fail again when Python exits
            _silence()
        return code


class Verbs(Mapping[str, Any]):
    """Name -> command of each file in `cli/verbs`. A verb is imported when it is looked up, so that no command waits
    for the imports of another."""

    # `import` is a word of Python, so its file and its function are called `import_`
    files = MappingProxyType({file.name.rstrip("_"): file.name for file in pkgutil.iter_modules(verbs.__path__)})

    def __iter__(self) -> Iterator[str]:
        return iter(self.files)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, name: str) -> Any:
        file = self.files[name]
        return get_command(vars(importlib.import_module(f"{verbs.__name__}.{file}"))[file])


class Program(TyperGroup):
    """The command `anyformer`, whose help lists the verbs by what they are for."""

    def list_commands(self, ctx: Any) -> list[str]:
        panels = get_args(Panel)
        return sorted(self.commands, key=lambda name: panels.index(vars(self.commands[name])["rich_help_panel"]))


def program() -> Any:
    """The command `anyformer` with all its verbs."""
    app = typer.Typer(
        cls=Program,
        help=HELP,
        epilog=EPILOG,
        add_completion=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_globals)
    command: Any = get_command(app)
    command.commands = Verbs()
    return command


def _run(arguments: list[str]) -> int:
    literal_words = len(arguments) - arguments.index("--") - 1 if "--" in arguments else 0
    try:
        result = program().main(
            arguments or ["--help"], prog_name="anyformer", standalone_mode=False, obj=literal_words
        )
    except typer.Abort:
        raise KeyboardInterrupt from None
    except SystemExit as stop:
        if isinstance(stop.__context__, BrokenPipeError):
            raise stop.__context__ from None
        return stop.code if isinstance(stop.code, int) else 1
    if result == INTERRUPTED:  # typer replaces KeyboardInterrupt by this exit code
        raise KeyboardInterrupt
    return result if isinstance(result, int) else 0


def _version(show: bool) -> None:
    if show:
        typer.echo(f"anyformer {anyformer.__version__}")
        raise typer.Exit


def _globals(
    version: Annotated[
        bool, typer.Option("--version", "-v", help="Show the version.", callback=_version, is_eager=True)
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error. Allowed at any place.")
    ] = False,
    files: Annotated[
        list[Path] | None,
        typer.Option(
            "--import",
            metavar="FILE",
            help="Import a Python file that registers your own kinds. Goes before the verb; may be repeated.",
        ),
    ] = None,
) -> None:
    """Options before the verb. `--debug` is listed for the help; `main` removes it before the arguments are parsed."""
    if files:
        from anyformer.core.discovery import import_file

        for file in files:
            import_file(file)


def _warn(message: Warning | str, *_: Any) -> None:
    """Prints a warning on one line, without file name and line number."""
    print(f"warning: {visible(str(message))}", file=sys.stderr)


def _interrupt(_number: int, frame: FrameType | None) -> None:
    """Handles Ctrl-C. While a module is imported the process ends at once: extension modules such as numpy's print
    KeyboardInterrupt with a traceback, or turn it into another error."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            os._exit(_report_interrupt())
        frame = frame.f_back
    raise KeyboardInterrupt


def _report_interrupt() -> int:
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        print("interrupted", file=sys.stderr, flush=True)
    return INTERRUPTED


def _report(error: Exception) -> int:
    if isinstance(error, Interrupted):  # requested by the user, and the state is saved: not an error
        with contextlib.suppress(BrokenPipeError):
            print(visible(str(error)), file=sys.stderr, flush=True)
        return error.exit_code
    if isinstance(error, AnyformerError):
        complain(str(error))
        return error.exit_code
    if isinstance(error, UsageError):
        usage: Any = error
        if text := usage.format_message():  # empty if a group of verbs has just printed its help
            path = usage.ctx.command_path if usage.ctx else "anyformer"
            text = text.replace("Value error, ", "")  # pydantic's words in typer's message
            if "No such option" in text and "--import" in text:
                text = f"--import goes before the verb: anyformer --import FILE {path.partition(' ')[2]} ..."
            complain(text, f"Help: {path} --help")
        return 2
    if isinstance(error, OSError) and (known := of_os_error(error)):
        return _report(known)
    what = f"{type(error).__name__}: {error}".splitlines()[0]
    complain(f"this is a bug in anyformer ({what}). Run it again with --debug and report the traceback.")
    return 1


def _silence() -> None:
    """Redirects stdout to the null device, because Python flushes it again at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
