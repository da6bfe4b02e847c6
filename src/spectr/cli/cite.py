"""`spectr cite`: the papers behind rules, as BibTeX."""

from dataclasses import asdict
from typing import Annotated

import typer

from spectr.cli.output import JsonFlag, print_json, talk
from spectr.papers import PAPERS, bibtex

__all__ = ["cite"]


def cite(
    rules: Annotated[
        list[str] | None, typer.Argument(metavar="RULE", help="Rules of `spectr rules`.", show_default=False)
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Print the papers behind rules as BibTeX. Without a rule, print the entry of this software."""
    from spectr.verify import rule

    cited = (key for name in rules for key in rule(name).card.papers) if rules else ("spectr",)
    keys = list(dict.fromkeys(cited))
    known = [key for key in keys if key in PAPERS]  # a rule of another package may name papers that are not here
    if len(known) < len(keys):
        talk(f"no BibTeX is known here for {', '.join(key for key in keys if key not in PAPERS)}")
    if as_json:
        print_json({"papers": [asdict(PAPERS[key]) for key in known]})
    elif known:
        typer.echo(bibtex(*known))
