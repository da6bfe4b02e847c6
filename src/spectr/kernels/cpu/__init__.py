"""Kernels for CPUs, compiled by LLVM on the user's machine: products of packed weights, and a decoder made of them.

Read in this order: `processor`, `emit` (the language kernels are written in), `kinds` (how weights are packed),
`products`, `steps` (norms, positions, attention, gate), `pool` (threads), `decoder`, `library` (compiling and keeping),
`threads` and `runner` (what Python calls).
"""
