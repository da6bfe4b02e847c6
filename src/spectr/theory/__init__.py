"""The papers' theory of speculative decoding as exact functions, each of which names its theorem; and comparisons of
acceptance by the number of drafts. Only `measure` uses models, and only `figure` draws."""

from spectr.theory.bias_frontier import decoding_opt, decoding_uno, least_bias, relaxed_test, relaxed_text
from spectr.theory.chains import ChainPair, repeated, zipf_chain
from spectr.theory.chen import TextTime, call_moments, text_time, trade_off
from spectr.theory.compare import COLUMNS, KS, Column, Comparison, compare
from spectr.theory.drafts import Bounds, acceptance_bounds, scaled_overlap
from spectr.theory.excess import acceptance_curves
from spectr.theory.families import Family, bernoulli, from_files, uniform, zipf
from spectr.theory.leviathan import (
    Prediction,
    expected_tokens,
    expected_tokens_by_depth,
    operations,
    pays,
    predict,
    predict_by_depth,
    speedup,
    token_law,
)
from spectr.theory.race import (
    best_static_tokens,
    entropy,
    entropy_bound,
    one_child,
    rank_bound,
    rank_law,
    worth_of_a_nat,
)
from spectr.theory.yin import (
    batch_rejections,
    drafts_worth,
    expected_rejections,
    limit_rejections,
    rejections_by_position,
    steady_rejections,
)

__all__ = [
    "COLUMNS",
    "KS",
    "Bounds",
    "ChainPair",
    "Column",
    "Comparison",
    "Family",
    "Prediction",
    "TextTime",
    "acceptance_bounds",
    "acceptance_curves",
    "batch_rejections",
    "bernoulli",
    "best_static_tokens",
    "call_moments",
    "compare",
    "decoding_opt",
    "decoding_uno",
    "drafts_worth",
    "entropy",
    "entropy_bound",
    "expected_rejections",
    "expected_tokens",
    "expected_tokens_by_depth",
    "from_files",
    "least_bias",
    "limit_rejections",
    "one_child",
    "operations",
    "pays",
    "predict",
    "predict_by_depth",
    "rank_bound",
    "rank_law",
    "rejections_by_position",
    "relaxed_test",
    "relaxed_text",
    "repeated",
    "scaled_overlap",
    "speedup",
    "steady_rejections",
    "text_time",
    "token_law",
    "trade_off",
    "uniform",
    "worth_of_a_nat",
    "zipf",
    "zipf_chain",
]
