"""Rules that change the output law, on purpose and by a stated bound. Everything outside this folder is lossless."""
