"""Compare the tokens per call of several rules on the same prompts with the same drafter."""

import sys

import spectr

model = sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m"
for rule in ("race", "optimal", "kseq", "speculative"):
    lm = spectr.load(model, "early_exit", rule=rule, nodes=6)
    texts = lm.generate(["Why is the sky blue?", "List two fruits."], max_new_tokens=24, seed=1)
    calls = sum(out.stats.steps for out in texts)
    print(f"{rule:12} {sum(len(out.tokens) for out in texts) / calls:.2f} tokens per call")
