"""Runs the blocks of a document in order, and compares or updates the output that it shows.

Such a document has three types of blocks, and no others:
- ```python, which begins with a comment: `# FILE` writes the file, `# FILE, at the end` adds to it, and
  `# FILE, in place of NAME` replaces the function or class NAME;
- ```json, the content of the last file named in backticks;
- ```console, `$ command` lines, each followed by its output. ```console exit=1 gives the exit code of the last command.
  A line `…` in an output stands for any lines; of such an output the numbers are not compared.
"""

import ast
import difflib
import os
import re
import subprocess
import sys
import venv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path

WIDTH = 80
HOME = "/home/you"  # shown in place of the directory in which the commands run
BLOCK = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"# ([\w./-]+\.\w+)(?:, (?:(at the end)|in place of (\w+)))?\n")
_FILE_NAME = re.compile(r"`([\w./-]+\.\w+)`")

_NUMBER = r"[0-9][0-9,]*(?:\.[0-9]+)?"
_VARYING = [
    (re.compile(r"\b[0-9]{4}-[0-9]{2}-[0-9]{2}-[0-9]{6}\b"), "DATE"),
    (re.compile(r"\b[0-9]+\.[0-9]+\.[0-9]+(?:\.dev[0-9]+)?\b"), "VERSION"),
    (re.compile(rf" *\b{_NUMBER} ?s\b(?: \([0-9]+:[0-9]{{2}}:[0-9]{{2}}\))?"), " TIME"),
    # The number of completions that a check or the fuzzer tries in its time.
    (re.compile(rf" *\b{_NUMBER} ((?:completions )?tried)\b"), r" NUMBER \1"),
    (re.compile(rf"\({_NUMBER}/s\)"), "(NUMBER/s)"),
    # Training differs in the last digit from one processor to another, and so in the end in the first digit. The
    # progress of an evaluation depends on the clock.
    (re.compile(r"^(step [0-9,]+/[0-9,]+) .*"), r"\1 NUMBERS"),
    (re.compile(r"^(ready in) .*"), r"\1 NUMBERS"),
    (re.compile(r"^(completions: \S+) \(.*\)"), r"\1 (SIZE)"),
    (re.compile(r"^(\S+ written), [0-9.]+ MB"), r"\1, SIZE"),
    (re.compile(r"^(  no answer) .*"), r"\1 NUMBERS"),
    (re.compile(rf"^(held-out accuracy[a-z 0-9]*:) {_NUMBER}%"), r"\1 NUMBER"),
    (re.compile(rf"-> {_NUMBER}% \([+-]{_NUMBER} points"), "-> NUMBER (NUMBER points"),
    (re.compile(rf"(evaluating[^:]*): {_NUMBER}/"), r"\1: NUMBER/"),
]


def normalise(output: str) -> list[str]:
    """The lines of an output, without what varies from run to run."""
    lines: list[str] = []
    for line in output.splitlines():
        for pattern, replacement in _VARYING:
            line = pattern.sub(replacement, line)
        line = line.rstrip()
        if not (lines and line == lines[-1] and line.startswith("evaluating")):
            lines.append(line)
    while lines and not lines[-1]:
        lines.pop()
    return lines


def shortened(commands: str) -> str:
    """The same commands, of which checks and searches try few completions and training takes few steps.

    What they find and learn is tested elsewhere.
    """
    few = re.sub(r"(tinyzero check \S+)(?= *(?:#|$))", r"\1 --examples 1", commands, flags=re.MULTILINE)
    few = re.sub(r"(--tinyzero-task \S+)", r"\1 --tinyzero-examples 1", few)
    few = re.sub(r"^tinyzero warmstart .*", r"\g<0> data.batch_size=8" + _FEW_STEPS, few)
    few = re.sub(r"^tinyzero train .*", r"\g<0> data.prompts_per_step=8 eval.every=0" + _FEW_STEPS, few)
    return re.sub(r"--time \d+", "--time 1", few)


_FEW_STEPS = " run.steps=2 eval.num_problems=16 eval.greedy=false rollout.max_completion_tokens=16"


def shows(shown: str, output: str) -> bool:
    """Whether a document shows an output, up to what varies from run to run.

    Example:
        >>> shows("a 1\\n…\\nd", "a 2\\nb\\nd"), shows("a 1\\n…\\nd", "a 2\\nb"), shows("a 1", "a 2")
        (True, False, False)
    """
    # Word by word: line breaks depend on the length of what varies.
    wanted, words = (" ".join("\n".join(normalise(text)).split()) for text in (shown, output))
    if "…" not in shown.splitlines():
        return wanted == words
    wanted, words = (re.sub(rf"[+-]?{_NUMBER}", "NUMBER", text) for text in (wanted, words))
    return re.fullmatch(".*".join(map(re.escape, wanted.split("…"))), words) is not None


class TranscriptError(AssertionError):
    """A document does not show what happens."""


@dataclass(frozen=True)
class Shell:
    """Where the commands of a document run: in `directory`, at first empty, with variables of `make_environment`."""

    directory: Path
    environment: Mapping[str, str]

    def run(self, command: str) -> tuple[str, int]:
        """The output of a command (stdout and stderr, interleaved) and its exit code."""
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.directory,
            env=dict(self.environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            check=False,
        )
        lines = [line.rstrip() for line in done.stdout.replace(str(self.directory), HOME).splitlines()]
        return "".join(f"{line}\n" for line in lines), done.returncode


def run_document(text: str, shell: Shell, *, compare: bool = True) -> str:
    """Run every block of a document; returns the document with the present outputs.

    An output that differs only in what varies from run to run stays as it was.

    Raises:
        TranscriptError: a block has an unknown type, a command has another exit code, or, with `compare`,
            prints something else.
    """
    pieces, end = [], 0
    for block in BLOCK.finditer(text):
        language, rest, body = block.groups()
        before = text[end : block.start()]
        if language == "python":
            _write_python(shell.directory, body)
        elif language == "json":
            names = _FILE_NAME.findall(text[: block.start()])
            _write(shell.directory, names[-1], body)
        elif language == "console":
            body = _run_console(body, rest, shell, compare)
        else:
            raise TranscriptError(f"a block of unknown type, ```{language}: {body[:60]!r}")
        pieces += [before, f"```{language}{rest}\n{body}```"]
        end = block.end()
    return "".join([*pieces, text[end:]])


def split_console(body: str) -> Iterator[tuple[str, str]]:
    """The commands of a console block, each with its output."""
    pieces = re.split(r"^\$ ((?:.*\\\n)*.*)\n", body, flags=re.MULTILINE)
    if pieces[0] or len(pieces) < 3:
        raise TranscriptError(f"a console block that does not begin with `$ `: {body[:60]!r}")
    yield from zip(pieces[1::2], pieces[2::2], strict=True)


def _run_console(body: str, rest: str, shell: Shell, compare: bool) -> str:
    exits = re.fullmatch(r"(?: exit=([0-9]+))?", rest)
    if exits is None:
        raise TranscriptError(f"```console{rest} is not understood")
    steps = list(split_console(body))
    now = ""
    for place, (command, shown) in enumerate(steps):
        output, code = shell.run(shortened(command) if compare else command)
        expected = int(exits[1] or 0) if place == len(steps) - 1 else 0
        if code != expected:
            raise TranscriptError(f"$ {command}\n{output}exited with {code}, not {expected}")
        same = shows(shown, output)
        if compare and not same:
            difference = difflib.unified_diff(normalise(shown), normalise(output), "document", "now", lineterm="")
            raise TranscriptError("\n".join([f"$ {command}", *difference]))
        now += f"$ {command}\n{shown if same else output}"
    return now.rstrip("\n") + "\n"


def _write_python(directory: Path, code: str) -> None:
    heading = _HEADING.match(code)
    if heading is None:
        raise TranscriptError(f"a Python block that does not begin with `# FILE`: {code[:60]!r}")
    name, at_the_end, replaced = heading.groups()
    added = code[heading.end() :].strip("\n") + "\n"
    if at_the_end:
        code = (directory / name).read_text(encoding="utf-8") + "\n\n" + added
    elif replaced:
        code = _replace(directory / name, replaced, added)
    _write(directory, name, code)


def _replace(file: Path, name: str, added: str) -> str:
    """The code of a file with `added` in place of the top-level definition of `name` and its decorators."""
    code = file.read_text(encoding="utf-8")
    lines = code.splitlines(keepends=True)
    for node in ast.parse(code).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            start = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            return "".join([*lines[: start - 1], added, *lines[node.end_lineno :]])
    raise TranscriptError(f"{file.name} defines no {name} at its top level")


def _write(directory: Path, name: str, content: str) -> None:
    path = directory / name
    if not path.parent.is_dir():
        raise TranscriptError(f"the directory of {name} does not exist")
    path.write_text(content, encoding="utf-8")


def make_environment(folder: Path) -> dict[str, str]:
    """A new environment over the running one, into which a document may install; needs no network.

    Returns:
        The variables of a shell in which `python`, `pip`, `pytest` and `tinyzero` are those of the environment.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    programs = folder / "bin"
    [packages] = folder.glob("lib/python*/site-packages")
    below = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "below.pth").write_text("".join(f"import site; site.addsitedir({path!r})\n" for path in below))
    for point in entry_points(group="console_scripts"):
        if point.name in ("tinyzero", "pip", "pytest"):
            code = f"import sys\nfrom {point.module} import {point.attr} as main\nsys.exit(main())\n"
            (programs / point.name).write_text(f"#!{programs / 'python'}\n{code}")
            (programs / point.name).chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if name in ("HOME", "TMPDIR", "LD_LIBRARY_PATH")}
    return kept | {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": str(WIDTH),
        "LANG": "C.UTF-8",
        "PYTHONUTF8": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INDEX": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # 0 = do not isolate: pip reads the variable as the option's value
        "HF_HUB_OFFLINE": "1",
    }
