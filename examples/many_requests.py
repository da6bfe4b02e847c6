"""Submit several requests at once, each with its own settings, and wait for their results."""

import sys

import spectr

lm = spectr.load(sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m")
asked = {
    "Name three rivers.": {"temperature": 0, "max_new_tokens": 24},
    "Write one line about rain.": {"temperature": 1.2, "seed": 3, "max_new_tokens": 24, "stop": ["\n"]},
    "Is water wet?": {"temperature": 0.7, "top_p": 0.9, "seed": 5, "max_new_tokens": 16, "logprobs": 2},
}
handles = {prompt: lm.submit(prompt, **settings) for prompt, settings in asked.items()}
for prompt, handle in handles.items():
    out = handle.result()
    print(f"{prompt}\n  {out.text.strip()!r} ({out.finish_reason})")
