"""The fields that responses have beyond OpenAI's: traces, receipts and statistics of speculation.

The docstring below a field is its description in `/openapi.json` and in docs/http.md. `replies` and `receipt` write the
fields; a test holds them to these models.
"""

from typing import Any

from pydantic import BaseModel, ConfigDict

__all__ = ["Answer", "ChoiceReport", "ChunkReport", "Receipt", "ResponseReport", "SpeculativeDecoding"]


class Answer(BaseModel):
    """An object of a response. It describes what the server sends, and checks nothing."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class TreeNode(Answer):
    """A node of a token tree. Probabilities are those of its token after the text before it, after all settings."""

    token: int
    """The id of its token."""
    text: str
    """The text of its token."""
    parent: int | None
    """The index of its parent; null for the root, which is the last token before the step."""
    draft: float | None
    """The probability of its token under the drafter's distribution; null for the root, or if the drafter has none."""
    target: float | None
    """The probability of its token under the model's distribution; null for the root."""
    accepted: bool
    """Whether it was accepted."""
    origin: str
    """Where it comes from: drafter, lookup, prediction or grammar."""


class AddedToken(Answer):
    """The token that the model itself added after the accepted drafts of a step."""

    parent: int
    """The index of the node that it follows."""
    token: int | None
    """Its id; null if the text ended before it."""
    text: str
    """Its text; empty if the text ended before it."""
    target: float
    """Its probability under the model's distribution."""
    corrected: bool
    """Whether it replaces a rejected draft."""


class Tree(Answer):
    """The token tree of a step."""

    nodes: list[TreeNode]
    """The nodes, parents before their children; the first is the root."""
    bonus: AddedToken
    """The token that the model added."""


class TracedStep(Answer):
    """What one call of the model added to a text."""

    tokens: list[int]
    """The ids of the tokens: the accepted drafts, then the token that the model added."""
    bytes: list[list[int]]
    """The bytes of each token; a character may take several tokens."""
    origins: list[str]
    """Where each token comes from: drafter, lookup, prediction or grammar for a draft; correction, bonus or plain for
    the model's own token, which replaced a rejected draft, came after accepted ones, or had no drafts beside it."""
    accepted: int
    """How many of the tokens are drafts."""
    drafted: int
    """How many draft tokens the model scored."""
    corrected: bool
    """Whether the last token replaces a rejected draft."""
    text: str
    """The text that the step made visible; it may be empty, since half a character is not shown."""
    tree: Tree | None = None
    """The token tree of the step; absent if the step added no token."""


class ChoiceReport(Answer):
    """What `spectr.trace` and `spectr.tokens` of the request ask for."""

    trace: list[TracedStep] | None = None
    """The steps, if `spectr.trace` is true."""
    tokens: list[int] | None = None
    """The ids of the generated tokens, if `spectr.tokens` is true."""


class ReceiptModel(Answer):
    """The model of a receipt."""

    name: str
    """The name under which the server has the model."""
    digest: str
    """A digest of the weights."""


class ReceiptSpeculation(Answer):
    """The speculation of a receipt."""

    rule: str
    """The rule that accepted drafts."""
    drafter: str
    """The drafter."""
    nodes: int
    """The most nodes of a token tree, the root included."""
    lossless: bool
    """Whether the rule keeps the model's distribution exactly."""
    plan: dict[str, Any] | None
    """The options with which the drafter made its trees: `siblings`, `drafts`, `length`, `nodes`, `tree`; null if it
    has none."""


class ReceiptText(Answer):
    """One text of a receipt."""

    tokens: int
    """How many tokens the text has."""
    sha256: str
    """The SHA-256 digest of the list of its token ids, written as JSON."""


class Receipt(Answer):
    """Everything that the texts of a response depend on. `spectr replay` generates them again from it."""

    format: int
    """The version of this format: 1."""
    model: ReceiptModel
    """The model, with a digest of its weights."""
    versions: dict[str, str]
    """The versions of spectr, torch and transformers."""
    arithmetic: dict[str, Any]
    """What rounding depends on: dtype, how weights are stored, device, hardware, tensor parallelism."""
    speculation: ReceiptSpeculation
    """Rule, drafter and size of the tree."""
    seed: int
    """The seed of the texts."""
    n: int
    """Texts for each prompt."""
    prompts: list[list[int]]
    """The token ids of each prompt."""
    max_new_tokens: list[int]
    """The most new tokens for the texts of each prompt."""
    settings: dict[str, Any]
    """Every other setting that the request gave, under the names of `lm.generate`."""
    texts: list[ReceiptText]
    """A digest of each text."""


class ResponseReport(Answer):
    """What is needed to generate the texts of a response again."""

    seed: int
    """The seed of the texts, drawn at random if the request gave none."""
    receipt: Receipt | None = None
    """Everything that the texts depend on; absent if `spectr.receipt` is false or the server gives no receipts."""


class ChunkReport(ChoiceReport):
    """What a chunk of a stream reports: steps and tokens of a part of a text, seed and receipt in the last chunk."""

    seed: int | None = None
    """The seed of the texts, drawn at random if the request gave none; in the last chunk."""
    receipt: Receipt | None = None
    """Everything that the texts depend on, in the last chunk; absent if `spectr.receipt` is false or the server gives
    no receipts."""


class SpeculativeDecoding(Answer):
    """What speculation did for all texts of a response, under vLLM's names."""

    mean_acceptance_length: float
    """Tokens per call of the model, the model's own token included."""
    draft_acceptance_rate: float
    """The share of the draft tokens that were accepted."""
    acceptance_histogram: list[int]
    """How many steps accepted 0, 1, 2, … draft tokens."""
    num_spec_steps: int
    """Calls of the model."""
    num_accepted_draft_tokens: int
    """Draft tokens that were accepted."""
    num_draft_tokens: int
    """Draft tokens that the model scored."""
    num_spec_tokens: int
    """The most draft tokens of a tree."""
    per_step_accepted: list[int] | None = None
    """The draft tokens that each step accepted, if `spectr.statistics` is true."""
    per_step_drafted: list[int] | None = None
    """The draft tokens of each step, if `spectr.statistics` is true."""
