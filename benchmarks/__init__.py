"""The measurements behind the numbers in the documentation: runnable modules, and the JSON files that they wrote.

Run them from the root of a checkout, with spectr installed. None of this is part of the package that users install.
"""
