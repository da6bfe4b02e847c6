"""With many rows a head reads only the end of each prompt, which costs less, and changes no text of the race."""

from tests.asking import Stepped, draft_readers
from tests.contracts.ways import LONG, PRUNED
from transformers import PreTrainedModel

import spectr
from spectr.draft import drafter
from spectr.engine import Engine, Request
from spectr.models.head import head_of
from spectr.models.target import Target


def test_later_rows_read_the_end_of_their_prompts(net: PreTrainedModel) -> None:
    """The first two rows are read whole; the others skip all but six tokens, also where they share a prefix."""
    target, head = Target(net), Target(head_of(net, 1, (0,)).double())
    made = drafter(
        "feature", head=head, target=target, plan=PRUNED, feature_layers=(0,), busy_reads=6, busy_rows=2
    )  # fmt: skip
    prompts = [[token, *LONG] for token in range(4)] + [[3, *LONG, 1, 2]]
    requests = [Request(prompt, seed, 20) for seed, prompt in enumerate(prompts)]
    stepped = Stepped(Engine(target, made, spectr.rule("race")))
    handles = [stepped.submit(request) for request in requests]
    stepped.turn()
    (lane,) = stepped.scheduler.lanes.values()
    (reader,) = draft_readers(lane.memory.drafting)
    expected = [0, 0, *(len(prompt) - 7 for prompt in prompts[2:])]
    while len(lane.active) < len(prompts):
        stepped.turn()
    assert reader._skipped[: len(prompts)] == expected
    found = [result.tokens for result in stepped.finish(handles)]
    plain = Engine(target, drafter("none"), spectr.rule("race")).generate(requests)
    assert found == [result.tokens for result in plain]
