"""The decoder of the Llama family as one compiled function, from embeddings to hidden states and logits.

Every thread runs the function from beginning to end and takes its share of each stage. Everything that differs between
models and calls is data: tables with the sizes and addresses of weights, buffers and caches.
"""

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from spectr.kernels.cpu import steps
from spectr.kernels.cpu.emit import F32, I64, PTR, Body, Table
from spectr.kernels.cpu.pool import TASK, ThreadPool
from spectr.kernels.cpu.processor import Processor
from spectr.kernels.cpu.products import MATRIX, MULTIPLY

__all__ = ["CALL", "LAYER", "PROGRAM", "emit_decoder"]

PROGRAM = Table(
    "layers", "first_layer", "width", "heads", "kv_heads", "head_width", "rope_width", "inner", "epsilon", "scale",
    "cap", "is_gelu", "embed", "embed_rows", "embed_scale", "final_norm", "output",
)  # fmt: skip
"""Table of a model: its sizes, layers, embedding, last norm and output matrix."""

LAYER = Table(
    "norm", "q", "k", "v", "q_norm", "k_norm", "o", "attention_norm", "mlp_norm", "gate", "up", "down", "output_norm",
    "window", "rope",
)  # fmt: skip
"""Table of a layer: addresses of its weights, 0 for those it does not have; the width of its sliding window, 0 for
none; and its rotary table. Only Gemma has the norms after attention and after the gated layer."""

CALL = Table(
    "rows", "tokens", "given", "given_stride", "join", "positions", "batch", "slots", "plain", "more", "tail",
    "tail_stride", "keys", "values", "batch_stride", "head_stride", "slot_stride", "hidden", "hidden_stride", "inputs",
    "inputs_stride", "wide", "wide_stride", "k_offset", "v_offset", "up_offset", "scores", "scores_stride", "features",
    "features_stride", "feature_offsets", "selected", "selection", "logits", "logits_stride",
)  # fmt: skip
"""Table of a call: tokens, or the rows given in their place; for each token its position, its row of the cache, the
slot that it is written to, the number of slots from the first that it attends to without gaps, and the other slots that
it attends to; the cache; scratch buffers; where features are written, and where in them the output of each layer, 0
for a layer that is not among them; and which tokens' logits are computed."""

_COLUMNS = 512  # columns of the gated layer per piece of work
_PIECES = 4  # pieces of a product per thread


class _Decoder:
    """Emits the stages of the decoder into one function."""

    def __init__(self, body: Body) -> None:
        self.body = body
        self.program, self.call, state, self.thread = body.arguments
        self.pool = ThreadPool(body, state)
        self.pool.enter()
        self.threads = self.pool.read("threads")
        self.rows, self.width = self.of_call("rows"), self.of_program("width")
        self.hidden, self.hidden_stride = self.of_call("hidden", PTR), self.of_call("hidden_stride")
        self.inputs, self.inputs_stride = self.of_call("inputs", PTR), self.of_call("inputs_stride")
        self.wide, self.wide_stride = self.of_call("wide", PTR), self.of_call("wide_stride")
        self.epsilon = self.of_program("epsilon", F32)

    def of_program(self, name: str, kind: Any = I64) -> Any:
        return self.body.field(PROGRAM, self.program, name, kind)

    def of_call(self, name: str, kind: Any = I64) -> Any:
        return self.body.field(CALL, self.call, name, kind)

    def is_given(self, value: Any) -> Any:
        return self.body.builder.icmp_signed("!=", value, I64(0))

    def pointer(self, value: Any) -> Any:
        return self.body.builder.inttoptr(value, PTR)

    def hidden_row(self, row: Any) -> Any:
        return self.body.at(self.hidden, self.body.mul(row, self.hidden_stride))

    def inputs_row(self, row: Any) -> Any:
        return self.body.at(self.inputs, self.body.mul(row, self.inputs_stride))

    def wide_row(self, row: Any) -> Any:
        return self.body.at(self.wide, self.body.mul(row, self.wide_stride))

    # Stages

    def begin(self) -> None:
        """Compute the states that enter the first layer: embeddings of tokens, or the product of given rows with
        `join`."""
        body = self.body
        join = self.of_call("join")
        with body.builder.if_else(self.is_given(join)) as (joined, embedded):
            with joined:
                columns = body.field(MATRIX, self.pointer(join), "columns")
                with self.pool.pieces(self.rows) as row:
                    self._copy(
                        body.at(self.of_call("given", PTR), body.mul(row, self.of_call("given_stride"))), row, columns
                    )
                self.multiply(self.rows, [(self.pointer(join), self.hidden)], self.hidden_stride)
            with embedded, self.pool.pieces(self.rows) as row:
                self._embed(row)

    def _copy(self, source: Any, row: Any, columns: Any) -> None:
        """Copy a row to the inputs of a product."""
        body, inputs = self.body, self.inputs_row(row)
        with body.loop(0, body.mul(columns, 4), 4 * steps.LANES) as offset:
            body.store(body.load(ir.VectorType(F32, steps.LANES), source, offset, 4), inputs, offset, 4)
        steps.prepare(body, inputs, columns, 0, columns)

    def _embed(self, row: Any) -> None:
        body, target = self.body, self.hidden_row(row)
        token = body.at(self.of_call("tokens", PTR), body.mul(row, 8))
        kinds = (PTR, PTR, I64, PTR, I64)
        body.call_address(
            self.of_program("embed_rows"), kinds, self.of_program("embed", PTR), token, 1, target, self.hidden_stride
        )
        by = self.of_program("embed_scale", F32)
        with (
            body.when(body.builder.fcmp_ordered("!=", by, body.number(1.0))),
            body.loop(0, body.mul(self.width, 4), 4 * steps.LANES) as offset,
        ):
            values = body.load(ir.VectorType(F32, steps.LANES), target, offset, 4)
            body.store(body.builder.fmul(values, body.splat(by, steps.LANES)), target, offset, 4)

    def normalise(self, weight: Any) -> None:
        """Write the normalised states of all rows to the inputs of products."""
        with self.pool.pieces(self.rows) as row:
            self._normalise_row(self.hidden_row(row), weight, row)

    def _normalise_row(self, states: Any, weight: Any, row: Any) -> None:
        inputs = self.inputs_row(row)
        steps.normalise(self.body, states, weight, inputs, (self.width, self.epsilon))
        steps.prepare(self.body, inputs, self.width, 0, self.width)

    def multiply(self, rows: Any, products: Sequence[tuple[Any, Any]], stride: Any, *, adds: bool = False) -> None:
        """Multiply the inputs by one or more matrices, each given with the address of its outputs."""
        body = self.body
        tiles = [body.field(MATRIX, matrix, "tiles") for matrix, _ in products]
        share = body.div(body.add(*tiles), body.mul(self.threads, _PIECES))
        size = body.most(share, 1)
        counts = [body.div(body.add(count, body.sub(size, 1)), size) for count in tiles]
        with self.pool.pieces(body.add(*counts)) as piece:
            start: Any = body.whole(0)
            for (matrix, outputs), count, of_matrix in zip(products, counts, tiles, strict=True):
                at, end = body.sub(piece, start), body.add(start, count)
                is_inside = body.builder.and_(
                    body.builder.icmp_signed(">=", piece, start), body.builder.icmp_signed("<", piece, end)
                )
                with body.when(is_inside):
                    first = body.mul(at, size)
                    stop = body.least(body.add(first, size), of_matrix)
                    body.call_address(
                        body.field(MATRIX, matrix, "multiply"), MULTIPLY, matrix, self.inputs, self.inputs_stride,
                        outputs, stride, rows, first, stop, int(adds),
                    )  # fmt: skip
                start = end

    def attention(self, layer: Any, number: Any) -> None:
        """Compute queries, keys and values, apply positions, write to the cache, attend, and add the output product."""
        body = self.body
        k_offset, v_offset = self.of_call("k_offset"), self.of_call("v_offset")
        self.normalise(body.field(LAYER, layer, "norm", PTR))
        targets = [("q", self.wide), ("k", body.at(self.wide, k_offset)), ("v", body.at(self.wide, v_offset))]
        self.multiply(
            self.rows, [(body.field(LAYER, layer, name, PTR), place) for name, place in targets], self.wide_stride
        )
        caches = [body.load(PTR, self.of_call(name, PTR), body.mul(number, 8), 8) for name in ("keys", "values")]
        half = body.div(self.of_program("rope_width"), 2)
        for lanes in (16, 8, 4):  # the widest vectors that divide half a head
            fits = body.builder.icmp_signed("==", body.builder.urem(half, I64(lanes)), I64(0))
            if lanes < 16:
                wider = body.builder.icmp_signed("==", body.builder.urem(half, I64(2 * lanes)), I64(0))
                fits = body.builder.and_(fits, body.builder.not_(wider))
            with body.when(fits):
                with self.pool.pieces(self.rows) as row:
                    self._place(layer, row, caches, lanes)
                with self.pool.pieces(body.mul(self.rows, self.of_program("heads"))) as piece:
                    self._attend(layer, piece, caches, lanes)
        with self.pool.pieces(self.rows) as row:
            columns = body.mul(self.of_program("heads"), self.of_program("head_width"))
            steps.prepare(body, self.inputs_row(row), columns, 0, columns)
        self._add_output(layer, "o", "attention_norm")

    def _place(self, layer: Any, row: Any, caches: list[Any], lanes: int) -> None:
        """Normalise and rotate a token's queries and keys; write its keys and values to its slot."""
        body, width = self.body, self.of_program("head_width")
        start, half = self.wide_row(row), body.div(self.of_program("rope_width"), 2)
        position = body.load(I64, self.of_call("positions", PTR), body.mul(row, 8), 8)
        table = body.at(body.field(LAYER, layer, "rope", PTR), body.mul(position, body.mul(half, 8)))
        groups = (("heads", "q_norm", body.whole(0)), ("kv_heads", "k_norm", self.of_call("k_offset")))
        for heads, norm, offset in groups:
            weight = body.field(LAYER, layer, norm)
            with body.loop(0, self.of_program(heads)) as head:
                place = body.at(start, body.add(offset, body.mul(head, body.mul(width, 4))))
                with body.when(self.is_given(weight)):
                    steps.normalise(body, place, self.pointer(weight), place, (width, self.epsilon), lanes)
                steps.rotate(body, place, table, half, lanes)
        base = self._cache_row(row)
        slot = body.load(I64, self.of_call("slots", PTR), body.mul(row, 8), 8)
        for cache, offset in zip(caches, (self.of_call("k_offset"), self.of_call("v_offset")), strict=True):
            with body.loop(0, self.of_program("kv_heads")) as head:
                source = body.at(start, body.add(offset, body.mul(head, body.mul(width, 4))))
                far = body.add(
                    base, body.mul(head, self.of_call("head_stride")), body.mul(slot, self.of_call("slot_stride"))
                )
                with body.loop(0, body.mul(width, 4), 4 * lanes) as at:
                    values = body.load(ir.VectorType(F32, lanes), source, at, 4)
                    body.store(values, body.at(cache, far), at, 4)

    def _cache_row(self, row: Any) -> Any:
        """Return the offset of a token's row in the cache."""
        body = self.body
        batch = body.load(I64, self.of_call("batch", PTR), body.mul(row, 8), 8)
        return body.mul(batch, self.of_call("batch_stride"))

    def _attend(self, layer: Any, piece: Any, caches: list[Any], lanes: int) -> None:
        """Attend with one head of one token; the result is an input of the output product."""
        body, heads, width = self.body, self.of_program("heads"), self.of_program("head_width")
        row, head = body.div(piece, heads), body.builder.urem(piece, heads)
        shared = body.div(body.mul(head, self.of_program("kv_heads")), heads)
        offset = body.add(self._cache_row(row), body.mul(shared, self.of_call("head_stride")))
        place = body.mul(row, 8)
        plain, more = (body.load(I64, self.of_call(name, PTR), place, 8) for name in ("plain", "more"))
        tail = body.at(self.of_call("tail", PTR), body.mul(row, self.of_call("tail_stride")))
        scores = body.at(self.of_call("scores", PTR), body.mul(self.thread, self.of_call("scores_stride")))
        part = body.mul(head, body.mul(width, 4))
        first, plain, tail, more = self._windowed(layer, (plain, tail, more))
        seen = (body.at(caches[0], offset), body.at(caches[1], offset), self.of_call("slot_stride"))
        sizes = (width, self.of_program("scale", F32), self.of_program("cap", F32))
        query, output = body.at(self.wide_row(row), part), body.at(self.inputs_row(row), part)
        steps.attend(body, query, output, (*seen, first, plain, tail, more, scores), sizes, lanes)

    def _windowed(self, layer: Any, seen: tuple[Any, Any, Any]) -> tuple[Any, Any, Any, Any]:
        """Restrict the slots of a token to a layer's window: return the first slot, the end of those without gaps, and
        the address and number of the others."""
        body = self.body
        plain, tail, more = seen
        window = body.field(LAYER, layer, "window")
        every = body.add(plain, more)
        dropped = body.builder.select(self.is_given(window), body.most(body.sub(every, window), 0), body.whole(0))
        of_tail = body.most(body.sub(dropped, plain), 0)
        return body.least(dropped, plain), plain, body.at(tail, body.mul(of_tail, 8)), body.sub(more, of_tail)

    def _add_output(self, layer: Any, matrix: str, norm: str) -> None:
        """Add a product to the states, after a norm if the layer has one there."""
        body = self.body
        product, weight = body.field(LAYER, layer, matrix, PTR), body.field(LAYER, layer, norm)
        with body.builder.if_else(self.is_given(weight)) as (normed, plain):
            with normed:
                self.multiply(self.rows, [(product, self.wide)], self.wide_stride)
                with self.pool.pieces(self.rows) as row:
                    states = self.wide_row(row)
                    steps.normalise(body, states, self.pointer(weight), states, (self.width, self.epsilon))
                    target = self.hidden_row(row)
                    with body.loop(0, body.mul(self.width, 4), 4 * steps.LANES) as at:
                        kind = ir.VectorType(F32, steps.LANES)
                        total = body.builder.fadd(body.load(kind, target, at, 4), body.load(kind, states, at, 4))
                        body.store(total, target, at, 4)
            with plain:
                self.multiply(self.rows, [(product, self.hidden)], self.hidden_stride, adds=True)

    def gated(self, layer: Any) -> None:
        """Compute the gated feed-forward layer."""
        body, up_offset = self.body, self.of_call("up_offset")
        self.normalise(body.field(LAYER, layer, "mlp_norm", PTR))
        targets = [("gate", self.wide), ("up", body.at(self.wide, up_offset))]
        self.multiply(
            self.rows, [(body.field(LAYER, layer, name, PTR), place) for name, place in targets], self.wide_stride
        )
        inner, is_gelu = self.of_program("inner"), self.is_given(self.of_program("is_gelu"))
        parts = body.div(body.add(inner, _COLUMNS - 1), _COLUMNS)
        with self.pool.pieces(body.mul(self.rows, parts)) as piece:
            row, part = body.div(piece, parts), body.builder.urem(piece, parts)
            gates, inputs = self.wide_row(row), self.inputs_row(row)
            first = body.mul(part, _COLUMNS)
            stop = body.least(body.add(first, _COLUMNS), inner)
            steps.gate(body, gates, body.at(gates, up_offset), inputs, (first, stop), is_gelu)
            steps.prepare(body, inputs, inner, first, stop)
        self._add_output(layer, "down", "output_norm")

    def copy_to_features(self, number: Any) -> None:
        """Copy the states that leave a layer to the features, if the call asks for this layer."""
        body = self.body
        offset = body.load(I64, self.of_call("feature_offsets", PTR), body.mul(number, 8), 8)
        with body.when(body.builder.icmp_signed(">", offset, I64(0))), self.pool.pieces(self.rows) as row:
            target = body.at(self._features(row), offset)
            with body.loop(0, body.mul(self.width, 4), 4 * steps.LANES) as at:
                values = body.load(ir.VectorType(F32, steps.LANES), self.hidden_row(row), at, 4)
                body.store(values, target, at, 4)

    def _features(self, row: Any) -> Any:
        return self.body.at(self.of_call("features", PTR), self.body.mul(row, self.of_call("features_stride")))

    def end(self) -> None:
        """Write the output of the last norm to the features, and the logits of the selected tokens."""
        body, weight = self.body, self.of_program("final_norm", PTR)
        with body.when(self.is_given(self.of_call("features"))), self.pool.pieces(self.rows) as row:
            steps.normalise(body, self.hidden_row(row), weight, self._features(row), (self.width, self.epsilon))
        selected = self.of_call("selected")
        with body.when(self.is_given(selected)):
            with self.pool.pieces(selected) as place:
                row = body.load(I64, self.of_call("selection", PTR), body.mul(place, 8), 8)
                self._normalise_row(self.hidden_row(row), weight, place)
            output, logits = self.of_program("output", PTR), self.of_call("logits", PTR)
            self.multiply(selected, [(output, logits)], self.of_call("logits_stride"))


def emit_decoder(module: ir.Module, processor: Processor) -> None:
    """Emit the function `decode`, which all threads run."""
    body = Body(module, "decode", TASK, processor)
    decoder = _Decoder(body)
    decoder.begin()
    with body.loop(0, decoder.of_program("layers")) as number:
        layer = body.at(decoder.of_program("first_layer", PTR), body.mul(number, 8 * len(LAYER)))
        decoder.attention(layer, number)
        decoder.gated(layer)
        decoder.copy_to_features(number)
    decoder.end()
    body.finish()
