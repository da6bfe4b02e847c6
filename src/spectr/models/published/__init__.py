"""Draft heads that others trained and published. Read in this order:

`checkpoint` the files of a head: its config, the names and shapes of its tensors
`states`     which hidden states of the target a head reads; publishers number them in two ways
`decoder`    the config of its decoder layers
`formats`    which kind of head a checkpoint is, and whether it fits a target
`sharing`    what heads have in common: embeddings, draft vocabularies, output layers, the target's hidden states
`eagle3`     EAGLE-3 and 3.1: a layer that reads the target's hidden states, and below the root its own; P-EAGLE
`block`      DFlash and DSpark: a whole block of tokens in one pass
`loading`    from a folder or a hub id to a head that is ready to draft
`making`     a new EAGLE-3 head for a target, and saving it in the format that other engines load
"""
