"""Train a small head on a model's own features, and draft with it. The shell command is `spectr train`."""

import subprocess
import sys
import tempfile

import spectr

model, minutes = (sys.argv[1:3] + ["smollm2-135m", "20"][len(sys.argv[1:3]) :])[:2]
with tempfile.TemporaryDirectory() as folder:
    out = f"{folder}/head"
    train = [sys.executable, "-m", "spectr", "train", "--target", model, "--out", out, "--minutes", minutes]
    subprocess.run(train, check=True)
    lm = spectr.load(model, out, nodes=8)
    found = lm.generate("Explain tides in two sentences.", max_new_tokens=40, seed=1)
    print(found.text)
    print(f"{found.stats.block_efficiency:.2f} tokens per call")
