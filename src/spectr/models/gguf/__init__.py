"""Models in GGUF files: `reader` reads settings and tensors, `build` makes a model of transformers from them, and
`tokenizer` reads the tokenizer."""
