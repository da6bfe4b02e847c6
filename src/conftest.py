"""What is not looked through for doctests."""

collect_ignore = ["spectr/fleet/serving.py"]  # imports Ray, which only `make test-scale` installs
