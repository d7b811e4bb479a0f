"""The command line: parse, call, print. The only part that reads the environment.

Each command is one function `_name(commands)` that adds its parser, and one `_run_name(arguments) -> int` that imports
what it needs, calls it and prints. Exit codes: 0 done, 1 faults found (`verify`, `audit`) or a difference (`diff-runs`),
2 what was asked cannot be done (one line on stderr says why), 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any, NoReturn

from ladle import __version__
from ladle.errors import ConfigError, LadleError, TextError

if TYPE_CHECKING:
    from ladle.feed.feed import Feed
    from ladle.feed.picture import Picture
    from ladle.feed.row_picture import RowPicture
    from ladle.train.config import TrainConfig
    from ladle.train.ranks import Ranks

Commands = Any  # argparse's action that holds the commands; its class has no public name


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. argv: without the program's name; by default the process's own. Returns the exit code."""
    _ready_streams()
    try:
        arguments = parser().parse_args(argv)
        code: int = arguments.run(arguments)
        sys.stdout.flush()
    except LadleError as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        return _fail("interrupted; nothing half-written is left", 130)
    except BrokenPipeError:  # whoever read our output, such as `head`, has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter's last flush needs somewhere to go
        return 141
    except OSError as error:
        return _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except (MemoryError, RuntimeError) as error:  # torch says it by the latter
        if isinstance(error, RuntimeError) and not re.search(r"out of memory|can't allocate memory", str(error)):
            raise
        return _fail("out of memory")
    return code


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = _Parser(prog="ladle", description="Feeds language models: text in, tokens on disk, batches out.")
    top.add_argument("--version", action="version", version=f"ladle {__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for add in (_prepare, _inspect, _verify, _show, _audit, _train, _diff_runs, _bench):
        add(commands)
    return top


class _Parser(argparse.ArgumentParser):
    """One that says what is wrong in one line, without the usage before it. A command's parser is one too."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"ladle: {message}; see `{self.prog} --help`\n")


def command(commands: Commands, name: str, what: str, example: str) -> argparse.ArgumentParser:
    """Add a command's parser. what: one sentence. example: command lines that work as they stand."""
    added: argparse.ArgumentParser = commands.add_parser(
        name,
        help=what,
        description=what[0].upper() + what[1:] + ".",
        epilog="example:\n" + "".join(f"  {line}\n" for line in example.splitlines()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return added


def _ready_streams() -> None:
    """Standard streams that can be used: nowhere for one that was closed, escapes for letters that a terminal lacks.

    Also so that no file of ours is opened under a number that other code takes for standard output.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  the process's, to its end
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def _fail(message: str, code: int = 2) -> int:
    """One line, whatever the message: characters that would move a terminal's cursor are written as escapes."""
    line = " ".join(message.split("\n"))
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in line)
    print(f"ladle: {shown}", file=sys.stderr)
    return code


def _prepare(commands: Commands) -> None:
    add = command(
        commands,
        "prepare",
        "tokenise files and folders of text into a corpus",
        "ladle prepare book.txt data/book\nladle prepare books/ notes.md data/books --tokenizer gpt2 --val-fraction 0.01\n"
        "ladle prepare chats.jsonl data/chats --chat-field messages",
    )
    add.add_argument("inputs", nargs="+", metavar="INPUT", help="a file, or a folder searched for text (UTF-8)")
    add.add_argument("out", metavar="OUT", help="the corpus folder to make")
    add.add_argument(
        "--tokenizer",
        default="gpt2",
        metavar="NAME",
        help="gpt2 (default), bytes, chars, a tiktoken encoding, or a tokenizer.json",
    )
    add.add_argument(
        "--split", default="auto", choices=("auto", "hash", "tail"), help="how documents are shared out (default auto)"
    )
    add.add_argument("--val-fraction", type=float, default=0.1, metavar="F", help="val's share, 0 for none (default 0.1)")
    add.add_argument(
        "--end-of-text",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="append the end-of-text id after each document (default: where the tokenizer has one)",
    )
    add.add_argument(
        "--allow-special",
        action="append",
        default=[],
        metavar="MARKER",
        help="take this marker, where it is written in the text, as its control id; may be given several times",
    )
    add.add_argument(
        "--encoding-errors",
        default="strict",
        choices=("strict", "replace", "skip"),
        help="bytes that are not UTF-8: stop, read them as U+FFFD, or leave the file out (default strict)",
    )
    fields = add.add_argument_group("JSON lines", "with one of these each record of a .jsonl file is a document")
    fields.add_argument("--text-field", metavar="FIELD", help="the record's text (default: text)")
    fields.add_argument(
        "--train-spans-field", metavar="FIELD", help="[[first, last), ...]: the characters that are to be learned"
    )
    fields.add_argument("--mask-spans-field", metavar="FIELD", help="[[first, last), ...]: those that are not, such as prompts")
    fields.add_argument("--chat-field", metavar="FIELD", help="a list of messages, each with role and content")
    fields.add_argument(
        "--train-role",
        action="append",
        metavar="ROLE",
        help="whose content is to be learned (default: assistant); may be repeated",
    )
    add.add_argument("--shard-bytes", type=int, metavar="N", help="bytes of text a shard (default 64 MiB, more for large inputs)")
    add.add_argument("--quiet", action="store_true", help="no progress")
    add.add_argument("--json", action="store_true", help="print the summary as one JSON object")
    add.set_defaults(run=_run_prepare)


def _run_prepare(arguments: argparse.Namespace) -> int:
    from ladle.corpus.prepare import prepare

    with prepare(
        arguments.inputs,
        arguments.out,
        tokenizer=arguments.tokenizer,
        split=arguments.split,
        val_fraction=arguments.val_fraction,
        end_of_text=arguments.end_of_text,
        allowed_special=arguments.allow_special,
        shard_bytes=arguments.shard_bytes,
        encoding_errors=arguments.encoding_errors,
        text_field=arguments.text_field,
        train_spans_field=arguments.train_spans_field,
        mask_spans_field=arguments.mask_spans_field,
        chat_field=arguments.chat_field,
        train_roles=arguments.train_role or ("assistant",),
        progress=not arguments.quiet,
    ) as corpus:
        summary = corpus.summary
        if summary is not None:
            print(json.dumps(summary.to_dict()) if arguments.json else summary)
    return 0


def _inspect(commands: Commands) -> None:
    add = command(commands, "inspect", "show what a corpus holds and how it was made", "ladle inspect data/book")
    add.add_argument("corpus", metavar="CORPUS", help="a corpus folder, or one that nanoGPT prepared")
    add.add_argument("--json", action="store_true", help="print the manifest as JSON")
    add.set_defaults(run=_run_inspect)


def _run_inspect(arguments: argparse.Namespace) -> int:
    import ladle
    from ladle.corpus.inspect import inspect

    with ladle.open(arguments.corpus) as corpus:
        print(json.dumps(corpus.manifest) if arguments.json else inspect(corpus))
    return 0


def _verify(commands: Commands) -> None:
    add = command(commands, "verify", "reread a corpus and check every checksum, hash and id", "ladle verify data/book")
    add.add_argument("corpus", metavar="CORPUS", help="a corpus folder")
    add.add_argument("--quiet", action="store_true", help="no progress")
    add.set_defaults(run=_run_verify)


def _run_verify(arguments: argparse.Namespace) -> int:
    from ladle.corpus.verify import verify

    verdict = verify(arguments.corpus, progress=not arguments.quiet)
    print(verdict)
    return 1 if verdict.faults else 0


def _show(commands: Commands) -> None:
    add = command(
        commands,
        "show",
        "draw what a model is shown: the rows of a batch with their documents, or a text's windows",
        "ladle show data/book --step 3\n"
        "ladle show data/book --step 3 --row 1\n"
        'ladle show --windows --length 4 --stride 1 "In the heart of the city"\n'
        "ladle show --windows --tokenizer bytes --json - < book.txt",
    )
    add.add_argument(
        "what", metavar="CORPUS|TEXT", help="a corpus folder; with --windows the text itself, or - for standard input"
    )
    which = add.add_mutually_exclusive_group(required=True)
    which.add_argument("--step", type=int, metavar="N", help="draw batch number N of the run, from 0")
    which.add_argument("--position", type=int, metavar="P", help="draw the batch that begins at slot P, as the log says")
    which.add_argument("--windows", action="store_true", help="draw the windows of TEXT")
    add.add_argument("--limit", type=int, default=8, metavar="N", help="rows or windows drawn at most (default 8)")
    add.add_argument("--json", action="store_true", help="print one JSON object")
    batch = add.add_argument_group("a batch")
    batch.add_argument("--row", type=int, metavar="R", help="draw this row whole, token by token")
    _recipe_options(add)
    windows = add.add_argument_group("windows", "and --stride, which is then L unless it is given")
    windows.add_argument("--length", type=int, metavar="L", help="tokens in a window (default 8)")
    windows.add_argument("--tokenizer", metavar="NAME", help="as for prepare (default gpt2)")
    windows.add_argument("--allow-special", action="append", metavar="MARKER", help="as for prepare")
    add.set_defaults(run=_run_show)


def _run_show(arguments: argparse.Namespace) -> int:
    import shutil

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 100
    if arguments.windows:
        _refuse(arguments, "--windows", "row", "exclude", *(name for name in RECIPE if name != "stride"))
        _draw(_windows_picture(arguments, width), as_json=arguments.json)
        return 0
    _refuse(arguments, "--step and --position", "length", "tokenizer", "allow_special")
    from ladle.feed.row_picture import RowPicture

    with _opened(arguments) as feed:
        batch = feed.at(arguments.position) if arguments.step is None else feed[arguments.step]
        _draw(RowPicture(feed, batch, row=arguments.row, limit=arguments.limit, width=width), as_json=arguments.json)
    return 0


def _windows_picture(arguments: argparse.Namespace, width: int) -> Picture:
    from ladle.feed.picture import Picture
    from ladle.tokens import tokenizer

    text = _standard_input() if arguments.what == "-" else arguments.what
    chosen = tokenizer(arguments.tokenizer or "gpt2", text=text)
    length = 8 if arguments.length is None else arguments.length
    return Picture(
        chosen.encode(text, allowed_special=arguments.allow_special or ()),
        chosen,
        length=length,
        stride=getattr(arguments, "stride", length),
        limit=arguments.limit,
        width=width,
    )


def _draw(picture: Picture | RowPicture, *, as_json: bool) -> None:
    print(json.dumps(picture.to_dict()) if as_json else picture)


def _audit(commands: Commands) -> None:
    add = command(
        commands,
        "audit",
        "certify that every token of a run's split was a target exactly once an epoch, or say which were not",
        "ladle audit data/book --epochs 3\nladle audit data/book --block-size 32 --tail drop --json",
    )
    add.add_argument("what", metavar="CORPUS", help="a corpus folder, or one that nanoGPT prepared")
    add.add_argument("--epochs", type=int, default=1, metavar="K", help="how many, from the start (default 1)")
    add.add_argument("--quiet", action="store_true", help="no progress")
    add.add_argument("--json", action="store_true", help="print the certificate as one JSON object")
    _recipe_options(add)
    add.set_defaults(run=_run_audit)


def _run_audit(arguments: argparse.Namespace) -> int:
    with _opened(arguments) as feed:
        certificate = feed.audit(epochs=arguments.epochs, progress=None if arguments.quiet else sys.stderr)
    print(json.dumps(certificate.to_dict()) if arguments.json else certificate)
    return 1 if certificate.num_faults else 0


def _diff_runs(commands: Commands) -> None:
    add = command(
        commands,
        "diff-runs",
        "name the first step at which two training runs differ: in their batches, or only in their losses",
        "ladle diff-runs runs/book runs/book2\nladle diff-runs runs/book/log.jsonl runs/book2/log.jsonl --json",
    )
    add.add_argument("first", metavar="A", help="a run's folder, or its log.jsonl")
    add.add_argument("second", metavar="B", help="another's")
    add.add_argument("--json", action="store_true", help="print one JSON object")
    add.set_defaults(run=_run_diff_runs)


def _run_diff_runs(arguments: argparse.Namespace) -> int:
    from dataclasses import asdict
    from pathlib import Path

    from ladle.train.difference import compare

    logs = [path / "log.jsonl" if path.is_dir() else path for path in map(Path, (arguments.first, arguments.second))]
    found = compare(*logs)
    print(json.dumps(asdict(found)) if arguments.json else found)
    return 0 if found.field is None else 1


RECIPE = {  # the options of Feed that decide a batch: (type or choices, what they are)
    "batch_size": (int, "rows of a global batch, all ranks together"),
    "block_size": (int, "targets a row"),
    "window": (int, "targets that are shuffled together (default: the block size)"),
    "order": (("shuffled", "sequential", "random"), "of the windows"),
    "seed": (int, "of the order"),
    "tail": (("cover", "drop", "pad"), "what becomes of the targets that fill no window (default cover)"),
    "stride": (int, "targets from one window's start to the next (default: the window)"),
    "score": (("all", "new"), "targets of overlapping windows that count (default all)"),
    "epoch_offset": (bool, "shift the cuts each epoch"),
    "shuffle_block": (int, "neighbouring windows that stay together"),
    "pack": (("best_fit", "sequential", "single"), "whole documents in rows, instead of windows"),
    "overlong": (("split", "drop", "error"), "documents longer than a packed row (default split)"),
    "deal": (("fixed", "fresh"), "fresh: other documents together each epoch (default fixed)"),
    "mask_documents": (bool, "windows whose documents are kept apart"),
}


def _recipe_options(add: argparse.ArgumentParser) -> None:
    group = add.add_argument_group("the recipe", "as the run had it; what is not given is as `ladle train` has it")
    group.add_argument("--split", default="train", metavar="NAME", help="which split (default train)")
    for name, (kind, text) in RECIPE.items():
        flag = "--" + name.replace("_", "-")
        if kind is bool:
            group.add_argument(flag, action="store_true", default=argparse.SUPPRESS, help=text)
        elif isinstance(kind, tuple):
            group.add_argument(flag, choices=kind, default=argparse.SUPPRESS, help=text)
        else:
            group.add_argument(flag, type=int, metavar="N", default=argparse.SUPPRESS, help=text)
    group.add_argument(
        "--exclude",
        action="append",
        metavar="DOCS[@P]",
        help="documents excluded from position P on, such as 3,17@40960 (default: from the start)",
    )


@contextmanager
def _opened(arguments: argparse.Namespace) -> Iterator[Feed]:
    """The feed of these recipe options, over a corpus that is open as long."""
    import ladle
    from ladle.train.config import TrainConfig

    usual = TrainConfig()
    chosen = {name: getattr(usual, name) for name in ("batch_size", "block_size", "order", "seed")}
    chosen |= {name: getattr(arguments, name) for name in RECIPE if hasattr(arguments, name)}
    with ExitStack() as stack:
        split = stack.enter_context(ladle.open(arguments.what))[arguments.split]
        feed = ladle.Feed(split, **chosen, rank=0, world_size=1, framework="numpy", prefetch=0)
        stack.enter_context(feed)
        for told in arguments.exclude or ():
            if not re.fullmatch(r"\d+(,\d+)*(@\d+)?", told, re.ASCII):
                raise ConfigError(f"--exclude: expected documents and a position, such as 3,17@40960, found {told!r}")
            documents, _, position = told.partition("@")
            feed.exclude([int(number) for number in documents.split(",")], int(position or 0))
        yield feed


def _refuse(arguments: argparse.Namespace, mode: str, *names: str) -> None:
    """Raise ConfigError for an option that says nothing there."""
    for name in names:
        if getattr(arguments, name, None) is not None:
            raise ConfigError(f"--{name.replace('_', '-')}: expected not to be given with {mode}, where it means nothing")


def _train(commands: Commands) -> None:
    from dataclasses import fields

    from ladle.train.config import PRESETS, TrainConfig

    add = command(
        commands,
        "train",
        "train a small GPT on a corpus; a run that was killed resumes to the bit",
        "ladle train data/book --out runs/book\n"
        "ladle train data/book --preset cpu-small --steps 500 --out runs/book --resume\n"
        "ladle train data/books --pack best_fit --out runs/books\n"
        "torchrun --nproc-per-node 2 -m ladle train data/book --batch-size 24 --micro-batch-size 6 --out runs/book2",
    )
    add.add_argument("corpus", metavar="CORPUS", help="a corpus folder, or one that nanoGPT prepared")
    add.add_argument("--out", required=True, metavar="DIR", help="folder for log.jsonl, loss.svg and checkpoints/")
    add.add_argument("--resume", action="store_true", help="continue from the newest checkpoint in DIR, if there is one")
    add.add_argument("--preset", default="cpu-small", choices=sorted(PRESETS), help="what the options below begin with")
    add.add_argument("--threads", type=int, metavar="N", help="threads of torch on the CPU (default: torch's own choice)")
    options = add.add_argument_group("options", "each changes one value of the preset; in brackets cpu-small's")
    kinds, usual = {"int": int, "float": float, "str": str}, TrainConfig.preset("cpu-small")
    for field in fields(TrainConfig):
        flag, kind = "--" + field.name.replace("_", "-"), str(field.type).removesuffix(" | None")
        more: dict[str, Any] = {"dest": field.name, "default": argparse.SUPPRESS, "help": field.metadata["help"]}
        if (value := getattr(usual, field.name)) is not None:
            more["help"] += f" [{('no', 'yes')[value] if kind == 'bool' else value}]"
        if kind == "bool":
            options.add_argument(flag, action=argparse.BooleanOptionalAction, **more)
        else:
            options.add_argument(flag, type=kinds[kind], metavar={"int": "N", "float": "X", "str": "NAME"}[kind], **more)
    add.set_defaults(run=_run_train)


def _run_train(arguments: argparse.Namespace) -> int:
    from dataclasses import fields

    from ladle.train import TrainConfig, train

    given = {field.name: getattr(arguments, field.name) for field in fields(TrainConfig) if hasattr(arguments, field.name)}
    config = TrainConfig.preset(arguments.preset, **given)
    if arguments.threads is not None and arguments.threads < 1:
        raise ConfigError(f"threads: expected >= 1, found {arguments.threads}")
    with ExitStack() as stack:
        config, ranks = _join_ranks(config, stack)
        if arguments.threads is not None:
            import torch

            torch.set_num_threads(arguments.threads)
        report = train(arguments.corpus, arguments.out, config, resume=arguments.resume, ranks=ranks, writer=sys.stderr)
        if ranks.first:
            print(report)
    return 0


def _join_ranks(config: TrainConfig, stack: ExitStack) -> tuple[TrainConfig, Ranks]:
    """The ranks that torchrun started, met through the variables it sets; alone without them."""
    from dataclasses import replace

    import torch

    from ladle.train import Ranks, joined

    if "WORLD_SIZE" not in os.environ:
        return config, Ranks()
    try:
        rank, world_size, local_rank, port = (
            int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT")
        )
        address = os.environ["MASTER_ADDR"]
    except (KeyError, ValueError) as error:
        raise ConfigError(f"environment: expected the variables that torchrun sets, found WORLD_SIZE without {error}") from None
    on_cuda = config.device.startswith("cuda") or (config.device == "auto" and torch.cuda.is_available())
    if on_cuda:
        config = replace(config, device=f"cuda:{local_rank}")
        torch.cuda.set_device(local_rank)
    backend = "nccl" if on_cuda else "gloo"
    return config, stack.enter_context(joined(rank=rank, world_size=world_size, address=address, port=port, backend=backend))


def _bench(commands: Commands) -> None:
    add = command(
        commands,
        "bench",
        "measure the feed beside nanoGPT's algorithm and a DataLoader, after checking that all give the corpus's own rows",
        "ladle bench feed\nladle bench feed data/book --shapes 12x256,64x256",
    )
    add.add_argument("what", choices=("feed",), help="what to measure")
    add.add_argument("corpus", nargs="?", metavar="CORPUS", help="a corpus folder (default: random ids, made and removed)")
    add.add_argument("--split", default="train", metavar="NAME", help="which split (default train)")
    add.add_argument("--shapes", default="12x1024,64x1024,8x8192,512x256", metavar="BxT,...", help="batch size x block size")
    add.add_argument("--rounds", type=int, default=10, metavar="N", help="turns of each contender (default 10)")
    add.add_argument("--json", action="store_true", help="print one JSON object a shape")
    add.set_defaults(run=_run_bench)


def _run_bench(arguments: argparse.Namespace) -> int:
    from ladle.bench.machine import line
    from ladle.bench.side_by_side import side_by_side
    from ladle.bench.table import markdown

    for found in side_by_side(arguments.corpus, split=arguments.split, shapes=arguments.shapes, rounds=arguments.rounds):
        if arguments.json:
            print(json.dumps(found), flush=True)
            continue
        if "machine" in found:
            print(f"{line(found['machine'])}\n{found['corpus']['where']}: {found['corpus']['tokens']} tokens, page cache warm")
        print(f"\nB = {found['batch_size']}, T = {found['block_size']}\n{markdown(found['rows'])}", flush=True)
    return 0


def _standard_input() -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TextError(f"standard input @ byte {error.start}: expected UTF-8, found {error.object[error.start]:#04x}") from None
