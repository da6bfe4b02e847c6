"""`spectr audit`: checks that the output has the target's distribution, for this package, transformers, HTTP endpoints
and functions."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from spectr.cli.output import JsonFlag, check_folder, console, print_json, progress_bar, talk, write_text
from spectr.errors import ArgumentError

if TYPE_CHECKING:
    from spectr.audit import Case, Endpoint, Finding, Level, Report, Scope
    from spectr.audit.proofs import NamedRule
    from spectr.lm import LM
    from spectr.policy import Policy
    from spectr.verify import Rule

__all__ = ["audit"]

_PROMPTS = ("Tell me a short story.", "Count: one two three one two three", "Why is the sky blue?")
_STYLES = {"holds": "green", "seen": "green", "FAILS": "bold red", "NOT SEEN": "bold red", "LOSSY": "yellow"}


def _value(text: str) -> Any:
    """Parse JSON such as a number, or return the text itself."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _pairs(flag: str, values: Sequence[str] | None, separator: str) -> dict[str, str]:
    """Parse the values of a repeated flag such as `name=value`."""
    pairs = [word.partition(separator) for word in values or ()]
    if not all(name and mark for name, mark, _ in pairs):
        raise ArgumentError(f"{flag} takes a name and a value separated by {separator!r}, got {list(values or ())}")
    return {name.strip(): value.strip() for name, _, value in pairs}


def _function(path: str) -> Callable[[list[int], int], Sequence[int]]:
    """Import `module:name`, from the current folder or from installed packages."""
    module, _, name = path.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found: Callable[[list[int], int], Sequence[int]] = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ArgumentError(
            f"--function takes module:name of a function (prompt, seed), got {path!r}: {error}"
        ) from None
    return found


def _typed_command(context: typer.Context) -> str:
    """Return the command line as it was typed."""
    words = ["spectr", "audit"]
    for parameter in context.command.params:
        value = context.params.get(parameter.name or "")
        source = context.get_parameter_source(parameter.name or "")
        if source is None or source.name != "COMMANDLINE":
            continue
        flag = [parameter.opts[0]] if parameter.opts[0].startswith("-") else []
        values = value if isinstance(value, list | tuple) else [value]
        words += flag if value is True else [word for each in values for word in (*flag, str(each))]
    return shlex.join(words)


def _table(section: str, findings: Sequence[Finding]) -> Table:
    table = Table(section, "measured", "status", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.columns[2].no_wrap = True
    for finding in findings:
        table.add_row(finding.case, finding.measured, Text(finding.status, _STYLES.get(finding.status, "")))
    return table


def _show(report: Report) -> None:
    """Print a table for each section, then the summary."""
    for section, findings in groupby(report.findings, key=lambda finding: finding.section):
        console().print(_table(section, list(findings)))
        console().print()
    console().print(report.certainty, markup=False, soft_wrap=True)
    style = "bold green" if report.holds else "bold red"
    console().print(Text(f"{report.summary[0].upper()}{report.summary[1:]}.", style), soft_wrap=True)
    if any(finding.by_name and not finding.holds for finding in report.findings):
        talk("A lossy rule was named, and its output does not have the target's distribution: the exit status is 1.")


def _only_one(modes: Mapping[str, bool]) -> str:
    """Return the kind of audit that was requested, `model` by default."""
    requested = [name for name, is_set in modes.items() if is_set]
    if len(requested) > 1:
        raise ArgumentError(f"one kind of audit at a time, got {' and '.join(requested)}; --all runs all of them")
    return requested[0].split()[-1].removeprefix("--") if requested else "model"


def _is_transformers(name: str) -> bool:
    if name not in ("spectr", "transformers"):
        raise ArgumentError(f"--engine must be spectr or transformers, got {name!r}; others: --url, --function")
    return name == "transformers"


@dataclass(frozen=True, slots=True)
class _Model:
    """The model to audit, and its settings."""

    name: str
    device: str
    prompts: Sequence[str]
    policy: Policy
    drafter: str | None
    raw: bool
    vocabulary: int

    def load(self, drafter: str = "none", rule: str | Rule = "race") -> LM:
        """Load the model with a drafter and a rule."""
        from spectr.lm import load

        return load(self.name, drafter, rule, device=self.device, progress=talk)

    def prompt_ids(self, lm: LM) -> list[list[int]]:
        """Return the prompts as token ids."""
        return [lm.encode(text, raw=self.raw) for text in self.prompts]

    def scope(self, lm: LM, rules: Sequence[NamedRule] | None) -> Scope:
        """Return the scope of the audit."""
        from spectr.audit import Scope

        return Scope(self.prompt_ids(lm), self.policy, rules, self.drafter, self.vocabulary)


@dataclass(frozen=True, slots=True)
class _Request:
    """The parts of the command line that determine the cases."""

    kind: str
    model: _Model
    rules: Sequence[NamedRule] | None  # None: every rule
    endpoint: Endpoint | None
    function: str | None
    length: int
    bias: float

    def cases(self) -> list[Case]:
        """Return the cases to run."""
        from spectr.audit.endpoint import endpoint_case
        from spectr.audit.planted import planted_cases
        from spectr.audit.sections import exact_part

        match self.kind:
            case "exact":
                return exact_part(self.rules)
            case "planted":
                return planted_cases(self.bias)
            case "url":
                assert self.endpoint is not None
                return [endpoint_case(self.endpoint, self.length)]
            case "direct":
                return self._direct()
            case "function":
                return self._of_function()
        return self._of_model()

    def _of_model(self) -> list[Case]:
        from spectr.audit.planted import planted_cases
        from spectr.audit.sections import exact_part, model_cases, setup_of, transformers_cases

        lm = self.model.load()
        scope = self.model.scope(lm, self.rules)
        setup = setup_of(lm, scope)
        if self.kind == "transformers":
            return transformers_cases(setup, scope)
        if self.kind == "model":
            return model_cases(lm, scope, setup)
        others = transformers_cases(setup, scope, most=2_500)
        return [*exact_part(self.rules), *planted_cases(self.bias), *model_cases(lm, scope, setup), *others]

    def _direct(self) -> list[Case]:
        from spectr.audit.sections import direct_cases

        rule: str | Rule = "race" if self.rules is None else self.rules[0].rule
        lm = self.model.load(self.model.drafter or "lookup", rule)
        return direct_cases(lm, self.model.scope(lm, self.rules), self.length)

    def _of_function(self) -> list[Case]:
        from spectr.audit.sections import model_law, sampler_case

        sample, lm = _function(self.function or ""), self.model.load()
        prompt = self.model.prompt_ids(lm)[0]
        return [sampler_case(str(self.function), sample, model_law(lm, prompt, self.model.policy, self.length), prompt)]


def _endpoint(plain: Endpoint, header: Sequence[str] | None, body: str) -> Endpoint:
    """Return the endpoint with additional headers and body fields."""
    fields = _value(body)
    if not isinstance(fields, dict):
        raise ArgumentError(f"--body takes a JSON object, got {body!r}")
    return replace(plain, headers=_pairs("--header", header, ":"), more=fields)


def _named(rule: str | None, options: Sequence[str] | None) -> list[NamedRule] | None:
    from spectr.audit.proofs import named_rules

    values = {name: _value(value) for name, value in _pairs("--set", options, "=").items()}
    if rule is None and values:
        raise ArgumentError(f"--set is for one rule, got {', '.join(values)} and no --rule")
    return None if rule is None else named_rules(rule, values)


def _examined(cases: Sequence[Case], level: Level) -> Report:
    from spectr.audit import examine

    with progress_bar("auditing", len(cases)) as advance:
        return examine(cases, level, lambda _: advance())


def _print_report(report: Report, command: str, *, as_json: bool, out: Path | None) -> None:
    """Print the tables or JSON on stdout, and write JSON to a file if one is given."""
    data = report.as_data(command)
    if as_json:
        print_json(data)
    else:
        _show(report)
    if out is not None:
        write_text(out, json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def audit(
    context: typer.Context,
    target: Annotated[
        str, typer.Argument(help="Catalog name, hub id or folder; with --url, the model's name there.")
    ] = "smollm2-135m",
    exact: Annotated[
        bool, typer.Option("--exact", help="Run the checks that need no model: enumeration, policies, noise.")
    ] = False,
    planted: Annotated[
        bool, typer.Option("--planted", help="Plant faults on purpose; succeeds if the audit detects each.")
    ] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Run exact, planted, the model with every rule, and transformers.")
    ] = False,
    engine: Annotated[
        str, typer.Option("--engine", metavar="NAME", help="What to audit: spectr or transformers.")
    ] = "spectr",
    url: Annotated[
        str | None, typer.Option("--url", metavar="URL", help="Audit an OpenAI-compatible endpoint.")
    ] = None,
    function: Annotated[
        str | None,
        typer.Option("--function", metavar="MODULE:NAME", help="Audit a function (prompt ids, seed) -> tokens."),
    ] = None,
    rule: Annotated[
        str | None, typer.Option("--rule", metavar="RULE", help="The rule to audit. [default: every rule]")
    ] = None,
    options: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="An option of the rule; may be repeated.")
    ] = None,
    drafter: Annotated[
        str | None, typer.Option("--drafter", metavar="NAME", help="The drafter. [default: several in turn]")
    ] = None,
    direct: Annotated[
        bool, typer.Option("--direct", help="Sample from the model itself, without replay; few samples.")
    ] = False,
    prompt: Annotated[list[str] | None, typer.Option(metavar="TEXT", help="A prompt; may be repeated.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Use prompts as plain text, without the chat template.")] = False,
    temperature: Annotated[
        float, typer.Option(min=0.01, metavar="T", help="Temperature of the audited distribution.")
    ] = 1.0,
    top_k: Annotated[int, typer.Option(min=0, metavar="K", help="Top-k of the audited distribution; 0: all.")] = 0,
    top_p: Annotated[float, typer.Option(metavar="P", help="Top-p of the audited distribution.")] = 1.0,
    vocabulary: Annotated[
        int, typer.Option(min=2, metavar="V", help="Replay the model on its V likeliest tokens.")
    ] = 32,
    length: Annotated[
        int, typer.Option(min=1, max=3, metavar="L", help="Tokens of a text with --url, --function and --direct.")
    ] = 3,
    samples: Annotated[
        int | None, typer.Option(min=2, metavar="N", help="Texts of each sampler. [default: what --bias requires]")
    ] = None,
    bias: Annotated[float, typer.Option(metavar="TV", help="Total variation that the audit must detect.")] = 0.02,
    alarms: Annotated[float, typer.Option(metavar="P", help="False-alarm rate of the whole report.")] = 1e-6,
    seed: Annotated[
        int, typer.Option(metavar="N", help="Seed of the first text; the next texts use the next seeds.")
    ] = 0,
    end: Annotated[str | None, typer.Option(metavar="TOKEN", help="--url: the token that ends a text.")] = None,
    choices: Annotated[int, typer.Option(min=1, metavar="N", help="--url: texts requested in one call.")] = 64,
    top: Annotated[int, typer.Option(min=1, metavar="N", help="--url: log-probabilities per position.")] = 20,
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME:VALUE", help="--url: header of every call; may be repeated.")
    ] = None,
    body: Annotated[str, typer.Option(metavar="JSON", help="--url: additional fields of every request body.")] = "{}",
    device: Annotated[str, typer.Option("--device", metavar="DEVICE", help="cpu, cuda, or auto.")] = "auto",
    as_json: JsonFlag = False,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Also write the report as JSON to a file.")
    ] = None,
) -> None:
    """Check that the output has the target's distribution: by enumeration, by sampling, and by comparison.

    The exit status is 0 if every lossless claim holds. Lossy rules are listed with the bias they state. A lossy rule
    named with --rule is audited for the target's distribution, which it does not have, so the exit status is 1.
    """
    kind = _only_one({
        "--exact": exact, "--planted": planted, "--all": everything, "--url": url is not None, "--direct": direct,
        "--function": function is not None, "--engine transformers": _is_transformers(engine),
    })  # fmt: skip
    if out is not None:
        check_folder(out)
    from spectr.audit import Endpoint, Level
    from spectr.policy import Policy

    level = Level(alarms=alarms, bias=bias, samples=samples, seed=seed)
    prompts, policy = prompt or _PROMPTS, Policy(temperature, top_k, top_p)
    remote = None
    if url is not None:
        remote = _endpoint(Endpoint(url, target, prompts[0], choices, top, end), header, body)
    model = _Model(target, device, prompts, policy, drafter, raw, vocabulary)
    request = _Request(kind, model, _named(rule, options), remote, function, length, bias)
    report = _examined(request.cases(), level)
    _print_report(report, _typed_command(context), as_json=as_json, out=out)
    raise typer.Exit(0 if report.holds else 1)
