"""Structured output: what a text must look like, and which tokens may follow so that it does. In the order of reading:

`grammar`    what users write: a JSON schema, a regular expression, a grammar, a choice
`schema`     from JSON schemas to rules; `merging` is about schemas alone, `strings` and `numbers` about their values
`regex`      from regular expressions to rules
`ebnf`       rules, and how they are written
`vocabulary` what the tokens of a model spell
`compiler`   a grammar and a vocabulary together, within limits; `trial` tries in a process of its own first
`walk`       where a text stands in its grammar: masks for all nodes of a tree in one walk
`forced`     what a text leaves no choice about, as tokens to draft
`masks`      from packed masks to logits

Masks come from xgrammar, which is imported when a grammar is compiled. Nothing here knows a model or the engine.
"""

from spectr.grammar.compiler import CompiledGrammar, GrammarCompiler, GrammarLimits
from spectr.grammar.grammar import Grammar
from spectr.grammar.walk import GrammarWalk

__all__ = ["CompiledGrammar", "Grammar", "GrammarCompiler", "GrammarLimits", "GrammarWalk"]
