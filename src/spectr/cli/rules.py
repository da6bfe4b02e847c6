"""`spectr rules`: lists the rules, explains one, and compares their acceptance."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spectr.cli.output import JsonFlag, console, numbers, print_json, progress_bar, talk
from spectr.errors import ArgumentError, UnknownNameError
from spectr.registry import nearest

if TYPE_CHECKING:
    from spectr.theory import Comparison, Family

__all__ = ["app"]

app = typer.Typer(help="List, explain and compare the rules that accept drafts.", rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def list_rules(context: typer.Context, as_json: JsonFlag = False) -> None:
    """List, explain and compare the rules that accept drafts. Without a command, list them."""
    if context.invoked_subcommand is not None:
        return
    from spectr.cli.tables import rules_table, summaries_table
    from spectr.verify import RULES, rule

    cards = [rule(name).card for name in RULES]
    if as_json:
        print_json({"rules": [asdict(card) for card in cards]})
    else:
        console().print(rules_table(cards), "", summaries_table(cards), sep="\n")
        talk("spectr rules show RULE explains one of them")


def _wants_json(context: typer.Context, as_json: bool) -> bool:
    """Return whether `--json` was given before or after the command's name."""
    return as_json or (context.parent is not None and bool(context.parent.params["as_json"]))


@app.command("show")
def show_rule(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="RULE", help="A rule of `spectr rules`.")],
    as_json: JsonFlag = False,
) -> None:
    """Explain one rule: what it does, what it needs, what it costs, and how to use it."""
    from spectr.cli.explained import EXPLAINED
    from spectr.cli.tables import rule_page
    from spectr.verify import rule

    shown = rule(name)
    explained = EXPLAINED.get(name)  # a rule of another package has only its card
    if _wants_json(context, as_json):
        more = {} if explained is None else asdict(explained)
        print_json({**asdict(shown.card), "bias_bound": shown.bias_bound, **more})
    else:
        console().print(rule_page(shown, explained))


_FAMILIES = ["bernoulli", "uniform", "zipf", "all"]


@dataclass(frozen=True, slots=True)
class SelectedLaws:
    """The distributions that the flags select; None stands for a flag that was not given."""

    family: str | None
    target: Path | None
    draft: Path | None
    temperatures: str | None
    zipf: Mapping[str, Any]

    def families(self) -> list["Family"]:
        """Return the selected families of distributions."""
        from spectr.theory import from_files

        if self.target is None and self.draft is None:
            return self._drawn(self.family or "all")
        if self.target is None or self.draft is None:
            raise ArgumentError("--target-law and --draft-law belong together: give both, or none of them")
        if self.family is not None:
            raise ArgumentError("--family and --target-law both choose the distributions: give one of them")
        self._refuse_zipf_flags("laws from files")
        return [from_files(self.target, self.draft)]

    def _drawn(self, family: str) -> list["Family"]:
        from spectr import theory

        if family not in _FAMILIES:
            raise UnknownNameError(f"no family is called {family!r}; {nearest(family, _FAMILIES)}")
        names = _FAMILIES[:-1] if family == "all" else [family]
        if "zipf" not in names:
            self._refuse_zipf_flags(f"--family {family}")
        temperatures = numbers("--temperatures", self.temperatures or "1,0.5", float, 0.0)
        found = [getattr(theory, name)() for name in names if name != "zipf"]
        return found + [theory.zipf(temperature=t, **self.zipf) for t in temperatures if "zipf" in names]

    def _refuse_zipf_flags(self, what: str) -> None:
        names = [*self.zipf, *(["temperatures"] if self.temperatures is not None else [])]
        if names:
            flags = ", ".join(f"--{name}" for name in names)
            raise ArgumentError(f"{flags} belongs to the zipf family, not to {what}; use --family zipf or leave it out")


def _compared(families: Sequence["Family"], ks: Sequence[int]) -> list["Comparison"]:
    from spectr.theory import COLUMNS, compare
    from spectr.theory.compare import RACE_TOKENS
    from spectr.threads import one_thread

    with one_thread(), progress_bar("comparing", len(families) * len(COLUMNS) * len(ks)) as advance:
        found = [compare(family, ks, advance) for family in families]
    for one in found:
        if None in one.acceptance["race"]:
            talk(f"{one.family.name}: the race is not computed: it costs V², and V = {one.vocabulary} > {RACE_TOKENS}")
    return found


def _print_tables(found: Sequence["Comparison"]) -> None:
    from spectr.cli.tables import comparison_heading, comparison_reading, comparison_table

    out = console()
    for number, one in enumerate(found):
        parts = (comparison_heading(one), comparison_table(one), comparison_reading(one))
        out.print(*([""] if number else []), *parts, sep="\n")


FamilyFlag = Annotated[
    str | None,
    typer.Option(
        metavar="|".join(_FAMILIES),
        help="Distributions to compare on: the two of the papers, one like a model's (zipf), or all. [default: all]",
    ),
]
TargetFlag = Annotated[
    Path | None,
    typer.Option(
        "--target-law",
        metavar="FILE",
        help="The target's distribution over tokens: a JSON list, .npy, or numbers in a text file.",
    ),
]
DraftFlag = Annotated[
    Path | None,
    typer.Option("--draft-law", metavar="FILE", help="The drafter's distribution, together with --target-law."),
]
KFlag = Annotated[str, typer.Option("--k", metavar="K,K,...", help="Numbers of drafts.")]
TemperaturesFlag = Annotated[
    str | None,
    typer.Option("--temperatures", metavar="T,T,...", help="zipf: temperatures, 0 for greedy. [default: 1,0.5]"),
]
SizeFlag = Annotated[int | None, typer.Option(metavar="TOKENS", help="zipf: size of the vocabulary. [default: 200]")]
ExponentFlag = Annotated[float | None, typer.Option(metavar="S", help="zipf: exponent of the decay. [default: 1.3]")]
NoiseFlag = Annotated[float | None, typer.Option(metavar="SIGMA", help="zipf: the drafter's error. [default: 1]")]
SeedFlag = Annotated[int | None, typer.Option(metavar="N", help="zipf: seed of the drafter's error. [default: 0]")]
PlotFlag = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Also plot the comparison to a .png, .svg or .pdf.")
]


@app.command("compare")
def compare_rules(
    context: typer.Context,
    family: FamilyFlag = None,
    target: TargetFlag = None,
    draft: DraftFlag = None,
    k: KFlag = "1,2,4,8,16",
    temperatures: TemperaturesFlag = None,
    size: SizeFlag = None,
    exponent: ExponentFlag = None,
    noise: NoiseFlag = None,
    seed: SeedFlag = None,
    plot: PlotFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Compare how often the rules accept one of K drafts, in closed form. Acceptance is the probability that the next
    token is one of the K drafted ones; it is computed, not sampled, and shown next to the optimum."""
    ks = numbers("--k", k, int, 1)
    shape = {"size": size, "exponent": exponent, "noise": noise, "seed": seed}
    selected = SelectedLaws(family, target, draft, temperatures, {n: v for n, v in shape.items() if v is not None})
    from spectr.theory.figure import check_figure, save_figure

    if plot is not None:
        check_figure(plot)
    found = _compared(selected.families(), ks)
    if _wants_json(context, as_json):
        print_json({"comparisons": [one.as_data() for one in found]})
    else:
        _print_tables(found)
    if plot is not None:
        save_figure(found, plot)
        talk(f"wrote {plot}")
