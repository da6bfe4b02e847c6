"""`spectr cite`: the papers behind rules, as BibTeX."""

from dataclasses import asdict
from typing import Annotated

import typer

from spectr.cli.output import JsonFlag, print_json, talk
from spectr.data.papers import PAPERS, bibtex

__all__ = ["cite"]


def cite(
    rules: Annotated[
        list[str] | None, typer.Argument(metavar="RULE", help="Rules of `spectr rules`.", show_default=False)
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Print the papers behind rules as BibTeX. Without a rule, print the entry of this software."""
    cited = ["spectr"]
    if rules:
        from spectr.verify import rule  # slow to import, and not needed for the entry of this software

        cited = [key for name in rules for key in rule(name).card.papers]
    keys = list(dict.fromkeys(cited))
    known = [key for key in keys if key in PAPERS]  # a rule of another package may cite unknown papers
    if len(known) < len(keys):
        talk(f"there is no BibTeX entry for {', '.join(key for key in keys if key not in PAPERS)}")
    if as_json:
        print_json({"papers": [asdict(PAPERS[key]) for key in known]})
    elif known:
        typer.echo(bibtex(*known))
