"""Finds the plan that decodes fastest on this machine, plain decoding included, and diagnoses slow speculation."""
