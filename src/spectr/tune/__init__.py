"""Which plan decodes fastest on this machine, plain decoding included, and what is wrong where drafting is slow."""
