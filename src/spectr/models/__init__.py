"""Hugging Face and GGUF models as targets and draft heads: the only folder that imports transformers.

Models run unmodified: a target scores whole token trees with spectr's cache and an explicit mask. Nothing here depends
on rules or on the engine. Read in this order:

`hf`              opens a model by name, folder or GGUF file; `catalog` downloads, `support` says what a model needs
`target`          the target: prefill, scoring of trees, keeping of paths; `session` and `cache` hold its state
`drivers`         how each family of models is called with explicit positions and masks
`cpu`, `packed`   the compiled decoder for CPUs and its packed weights; `gguf` reads GGUF files
`head`, `trained` feature heads that spectr trains; `published` loads EAGLE-3, DFlash and DSpark heads
`compiled`, `graphs`, `prefill`   compiled layers and captured passes on a GPU
`parallel`        one model over several processes
`internals`       private names of transformers and torch
"""
