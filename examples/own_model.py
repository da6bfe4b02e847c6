"""Load your own model (a Hugging Face folder or hub id, or a GGUF file), then generate and stream text."""

import sys

import spectr

lm = spectr.load(sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m")
print(lm)

out = lm.generate("Explain tides in two sentences.", max_new_tokens=60, seed=7)
print(out.text)
print(f"{out.stats.block_efficiency:.2f} tokens per call of the model, seed {out.seed}")

for piece in lm.stream("Count from one to ten.", max_new_tokens=40, temperature=0):
    print(piece, end="", flush=True)
print()
