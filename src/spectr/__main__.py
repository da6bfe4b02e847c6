"""`python -m spectr` is the `spectr` command."""

from spectr.cli import main

main()
