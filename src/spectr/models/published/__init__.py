"""Heads that others trained and published. Read in this order.

`checkpoint` the files of a head: its config, the names and shapes of its tensors
`formats`    what a checkpoint is, read from config and tensors, and whether it fits a target
`sharing`    what heads have in common: embeddings, draft vocabularies, output layers, the target's hidden states
`eagle3`     EAGLE-3 and 3.1: a layer that reads the target's hidden states, and below the root its own
`block`      DFlash and DSpark: a whole block of tokens in one pass
`loading`    from a folder or a hub id to a head that is ready to draft
`making`     the way back: a fresh EAGLE-3 head for a target, and the folder that others load
"""
