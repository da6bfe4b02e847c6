"""Explanations of all rules for `spectr rules show`: what a rule does, what it costs, and a command that uses it.

Costs are per visited node of the token tree; `spectr bench rules` measures them.
"""

from dataclasses import dataclass

__all__ = ["EXPLAINED", "Explained"]


@dataclass(frozen=True, slots=True)
class Explained:
    """The explanation of one rule."""

    words: str
    cost: str
    flags: str  # of `spectr generate`, besides --rule


_CHAINS = "--drafter early_exit --drafts 4 --length 3"
_CHAIN = "--drafter early_exit --drafts 1 --length 4"

EXPLAINED = {
    "race": Explained(
        "Every token at every position gets random noise that is a function of the seed. The next token is the one "
        "whose noise divided by its probability is smallest, which is an exact sample from the target. The drafter "
        "sees the same noise and guesses which token wins; a guess is accepted if it is right. So the seed alone "
        "decides the text: it is the same with any drafter, any tree, or none. That holds in float32; in bfloat16 the "
        "distribution is the same, and texts can differ where two tokens are almost tied.",
        "one pass over the vocabulary; no softmax, no draft distribution, no residual",
        "--drafter early_exit --nodes 8",
    ),
    "path_block": Explained(
        "The optimal coupling picks one path down the tree, and block verification then tests that path as a whole. "
        "On average it never keeps fewer tokens than `optimal`.",
        "as `optimal` at every node of the path, then one pass over the vocabulary for each of its tokens",
        _CHAINS,
    ),
    "optimal": Explained(
        "It walks down the tree. At each node, target and children are coupled so that the next token is one of the "
        "children as often as any lossless method can make it, for independent drafts. SpecTr posed this as a linear "
        "program of exponential size; it can be sampled exactly with one sort and prefix sums.",
        "one sort of the vocabulary; above 8,192 tokens a histogram, which costs at most 0.0001 of the acceptance",
        _CHAINS,
    ),
    "hybrid": Explained(
        "The optimal coupling for drafts of which the likeliest few are fixed and the others are sampled from the "
        "rest of the draft distribution. How many are fixed is decided at each node from the draft distribution "
        "alone. On peaked distributions, as at a low temperature, it can accept more than any rule for independent "
        "drafts; on flat ones it fixes nothing and is `optimal`.",
        "as `optimal`, and the likeliest tokens of the draft distribution",
        _CHAINS,
    ),
    "kseq_plus": Explained(
        "K-SEQ discards all drafts when none passes its test. K-SEQ+ then gives the first draft one more test. It "
        "never accepts less than K-SEQ, and never more than the optimum.",
        "about 25 passes over the vocabulary, which search for a threshold",
        _CHAINS,
    ),
    "kseq": Explained(
        "SpecTr's K-SEQ tests the children of a node one after the other with probability min(1, p / (rho q)), where p "
        "and q are the target's and the drafter's probability of the token, and the first that passes is kept. rho is "
        "the smallest number for which the output has exactly the target's distribution. It accepts at least "
        "1 - (1 - 1/K)^K of the optimum, and usually much more.",
        "about 25 passes over the vocabulary, which search for rho",
        _CHAINS,
    ),
    "spectr": Explained(
        "The algorithm of the SpecTr paper as it was published: a walk down the tree with the K-SEQ coupling at every "
        "node. It is another name for `kseq`; the name refers to the paper, not to this package.",
        "as `kseq`",
        _CHAINS,
    ),
    "recursive": Explained(
        "Recursive rejection, as in SpecInfer: a child is tested against the target; after a rejection the next child "
        "is tested against what is left of the target. It is simple, and in the comparisons of `spectr rules compare` "
        "it never accepts more than K-SEQ.",
        "one pass over the vocabulary for each child",
        _CHAINS,
    ),
    "recursive_wor": Explained(
        "Recursive rejection for children that were drawn without replacement, so that no two are equal. After a "
        "rejection the token is removed from the draft distribution too.",
        "two passes over the vocabulary for each child",
        _CHAINS,
    ),
    "speculative": Explained(
        "Speculative sampling as it was first published: one draft, kept with probability min(1, p / q), where p and q "
        "are the target's and the drafter's probability of the token. Only the first of several children is tested.",
        "one pass over the vocabulary",
        _CHAIN,
    ),
    "block": Explained(
        "Block verification tests a chain of drafts as a whole and keeps the longest prefix that passes, whereas other "
        "rules stop at the first token that fails. No rule can keep more of one chain on average.",
        "one pass over the vocabulary for each token of the chain",
        _CHAIN,
    ),
    "traversal": Explained(
        "Traversal verification begins at the leaves. The mass of a rejected node returns to its parent, and the first "
        "node that passes ends the accepted path. On one chain it is block verification.",
        "two passes over the vocabulary for each node of the tree, one node after the other",
        _CHAINS,
    ),
    "match": Explained(
        "It draws from the target at every node and continues as long as the token was drafted. It works with any tree "
        "and any drafts and needs no draft distribution, which suits prompt lookup and top-k trees. With sampled "
        "drafts it accepts less than the rules that use the draft distribution.",
        "one pass over the vocabulary",
        "--drafter lookup",
    ),
    "walk": Explained(
        'It walks down the tree with any coupling; in Python, spectr.rule("walk", coupling="kseq"). Most of the other '
        "rules are this one with a coupling of their own. By default the coupling is the optimal one.",
        "that of the coupling",
        _CHAINS,
    ),
    "lenience": Explained(
        "The one-draft test is relaxed by a constant factor, 0.9 by default, so that more drafts pass. No token is "
        "emitted more than 1 / 0.9 times as often as by the target. The output no longer has the target's "
        "distribution.",
        "that of the coupling",
        _CHAINS,
    ),
    "pareto": Explained(
        "It rejects as seldom as a given bias allows: with a budget of total variation per token, 0.01 by default, no "
        "rule rejects less often. The output no longer has the target's distribution.",
        "that of the coupling",
        _CHAINS,
    ),
}
