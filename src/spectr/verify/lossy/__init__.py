"""Rules that change the output distribution on purpose, by at most a stated bound. All other rules are lossless."""
