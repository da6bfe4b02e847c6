"""One model over several processes: tensor parallelism on transformers' own sharding, started by torchrun.

Rank 0 has the scheduler, the drafter and the rule. The other ranks follow: they hold their shards of the weights and of
the cache, and run the target calls that rank 0 announces, nothing else. Read in this order:

`group`    the processes: messages of rank 0, comparisons, and how the death of one ends the others
`message`  what rank 0 sends before every call
`digest`   numbers that tell whether two ranks ran the same call
`target`   the target on rank 0, which announces its calls, and on the others, which run them
`follower` the loop of the other ranks
`sharding` from a loaded model, or its folder, to a shard on each rank
"""
