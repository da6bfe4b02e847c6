"""The planner: what a step costs here, what it gives on these prompts, and the way to decode that follows from it."""
