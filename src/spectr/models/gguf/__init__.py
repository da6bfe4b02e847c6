"""Models in GGUF files: `reader` (what is in a file), `build` (a model of transformers made of it)."""
