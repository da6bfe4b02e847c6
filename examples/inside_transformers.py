"""Use spectr within transformers: call `model.generate` on a model that is already loaded."""

import sys

from transformers import AutoModelForCausalLM, AutoTokenizer

import spectr.hf

folder = sys.argv[1]
model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
given = tokenizer("one two three one two", return_tensors="pt")
ids = model.generate(**given, custom_generate=spectr.hf.generate, drafter="lookup", max_new_tokens=24, do_sample=True)
print(tokenizer.decode(ids[0], skip_special_tokens=True))
