"""The same prompt under several rules: what each of them gets out of the same drafts."""

import sys

import spectr

model = sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m"
for rule in ("race", "optimal", "kseq", "speculative"):
    lm = spectr.load(model, "early_exit", rule=rule, nodes=6)
    texts = lm.generate(["Why is the sky blue?", "List two fruits."], max_new_tokens=24, seed=1)
    calls = sum(out.stats.steps for out in texts)
    print(f"{rule:12} {sum(len(out.tokens) for out in texts) / calls:.2f} tokens per call")
