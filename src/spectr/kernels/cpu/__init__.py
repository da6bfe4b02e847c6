"""Kernels for CPUs, compiled by LLVM on the user's machine: products of packed weights, and a decoder made of them.

Read in this order: `processor`, `emit` (a layer over llvmlite in which kernels are written), `kinds` (how weights are
packed), `products`, `steps` (norms, positions, attention, gate), `pool` (threads), `decoder`, `noise` (of the race),
`library` (compiling and caching), `threads` and `matrix` (what Python calls).
"""
