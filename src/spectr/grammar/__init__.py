"""Structured output: grammars that a text must match, and masks of the tokens that may follow. In reading order:

`grammar`     what users write: a JSON schema, a regular expression, a grammar, a choice
`schema`      converts JSON schemas to rules, with `strings` and `numbers` for their values, `layout` for white space
`keywords`    checks the keywords of JSON schemas; `merging` combines schemas, `exclusion` compares them for `oneOf`
`regex`       converts regular expressions to rules
`expressions` the right-hand sides of rules; `ebnf` prunes rules, unrolls repetitions and writes them as text
`vocabulary`  the bytes of a model's tokens
`compiler`    compiles a grammar for a vocabulary, within limits; `trial` first tries it in a separate process
`walk`        the state of one text in its grammar, and the masks for all nodes of a draft tree
`forced`      text that a grammar determines, as tokens to draft
`masks`       packs masks and applies them to logits

Masks come from xgrammar, which is imported when a grammar is compiled. The folder does not depend on models or the
engine.
"""

from spectr.grammar.compiler import CompiledGrammar, GrammarCompiler, GrammarLimits
from spectr.grammar.grammar import Grammar
from spectr.grammar.walk import GrammarWalk

__all__ = ["CompiledGrammar", "Grammar", "GrammarCompiler", "GrammarLimits", "GrammarWalk"]
