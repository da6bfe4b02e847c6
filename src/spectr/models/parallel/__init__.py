"""Run one model in several processes: tensor parallelism with the sharding of transformers, started by torchrun.

Rank 0 runs the scheduler, the drafter and the rule. The other ranks follow it: each holds its shards of the weights and
of the cache, and runs only the target calls that rank 0 announces. Read the modules in this order:

`group`    the group of processes: messages from rank 0, comparisons between ranks, shutdown when a rank is lost
`message`  the message that rank 0 sends before every call
`digest`   hashes that show whether two ranks ran the same call
`target`   the target on rank 0, which announces its calls, and on the other ranks, which run them
`follower` the loop of the other ranks
`sharding` splits a model, loaded or in a folder, into one shard per rank
"""
