"""A layer over llvmlite's builder: byte-addressed memory, loops, and vectors with explicit arithmetic.

LLVM keeps the order of floating-point operations, because no function here has a fast-math flag. The order of every sum
is therefore the order in which it is emitted.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from llvmlite import ir

from spectr.kernels.cpu.processor import Processor

__all__ = ["F32", "I1", "I8", "I16", "I32", "I64", "PTR", "VOID", "Body", "Table", "Variable", "vector"]

F32, HALF = ir.FloatType(), ir.HalfType()
I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
PTR, VOID = ir.PointerType(), ir.VoidType()


def vector(kind: Any, lanes: int) -> Any:
    """Return the type of a vector with `lanes` elements."""
    return ir.VectorType(kind, lanes)


class Table:
    """The field names of a table that Python fills and kernels read; each field has eight bytes."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self.places = {name: place for place, name in enumerate(names)}

    def __len__(self) -> int:
        return len(self.names)


class Variable:
    """A mutable value on the stack, which LLVM keeps in a register if possible."""

    def __init__(self, body: "Body", kind: Any, value: Any = None) -> None:
        self.body, self.kind = body, kind
        self.place = body.reserve(kind)
        if value is not None:
            self.set(value)

    def get(self) -> Any:
        return self.body.builder.load(self.place, typ=self.kind)

    def set(self, value: Any) -> None:
        self.body.builder.store(value, self.place)


class Body:
    """The body of one function under construction."""

    def __init__(
        self, module: ir.Module, name: str, arguments: Sequence[Any], processor: Processor, *, is_public: bool = True
    ) -> None:
        self.module, self.processor = module, processor
        self.function = ir.Function(module, ir.FunctionType(VOID, arguments), name)
        if not is_public:
            self.function.linkage = "internal"
            self.function.attributes.add("noinline")
        self.arguments = self.function.args
        self._entry = self.function.append_basic_block("entry")
        self.builder = ir.IRBuilder(self.function.append_basic_block("start"))

    def finish(self) -> Any:
        """End the function and return it."""
        self.builder.ret_void()
        ir.IRBuilder(self._entry).branch(self.function.blocks[1])
        return self.function

    def reserve(self, kind: Any, count: int = 1) -> Any:
        """Reserve memory on the stack."""
        entry = ir.IRBuilder(self._entry)
        made = entry.alloca(kind, count if count > 1 else None)
        made.align = 64
        return made

    # Integers and pointers

    def whole(self, value: Any, kind: Any = I64) -> Any:
        """Return a Python integer as a constant, and any other value unchanged."""
        return ir.Constant(kind, value) if isinstance(value, int) else value

    def add(self, first: Any, *others: Any) -> Any:
        total = self.whole(first)
        for other in others:
            total = self.builder.add(total, self.whole(other))
        return total

    def sub(self, one: Any, other: Any) -> Any:
        return self.builder.sub(self.whole(one), self.whole(other))

    def mul(self, one: Any, other: Any) -> Any:
        return self.builder.mul(self.whole(one), self.whole(other))

    def div(self, one: Any, other: Any) -> Any:
        return self.builder.udiv(self.whole(one), self.whole(other))

    def less(self, one: Any, other: Any) -> Any:
        return self.builder.icmp_signed("<", self.whole(one), self.whole(other))

    def least(self, one: Any, other: Any) -> Any:
        one, other = self.whole(one), self.whole(other)
        return self.builder.select(self.less(one, other), one, other)

    def most(self, one: Any, other: Any) -> Any:
        one, other = self.whole(one), self.whole(other)
        return self.builder.select(self.less(one, other), other, one)

    def at(self, base: Any, offset: Any) -> Any:
        """Return the address `offset` bytes after `base`."""
        return self.builder.gep(base, [self.whole(offset)], source_etype=I8)

    def load(self, kind: Any, base: Any, offset: Any = 0, align: int = 1) -> Any:
        return self.builder.load(self.at(base, offset), typ=kind, align=align)

    def store(self, value: Any, base: Any, offset: Any = 0, align: int = 1) -> None:
        self.builder.store(value, self.at(base, offset), align=align)

    def field(self, table: Table, base: Any, name: str, kind: Any = I64) -> Any:
        """Load a field of a table."""
        return self.load(kind, base, 8 * table.places[name], 8)

    # Control

    @contextmanager
    def loop(self, start: Any, stop: Any, step: Any = 1) -> Iterator[Any]:
        """Emit a loop that counts from `start` in steps while below `stop`."""
        counter = Variable(self, I64, self.whole(start))
        head, inside, after = (self.function.append_basic_block(name) for name in ("head", "inside", "after"))
        self.builder.branch(head)
        self.builder.position_at_end(head)
        self.builder.cbranch(self.less(counter.get(), stop), inside, after)
        self.builder.position_at_end(inside)
        yield counter.get()
        counter.set(self.add(counter.get(), step))
        self.builder.branch(head)
        self.builder.position_at_end(after)

    @contextmanager
    def repeat(self) -> Iterator[Callable[[Any], None]]:
        """Emit a loop that ends when a condition holds; the yielded function takes it and must be called once, last."""
        inside, after = (self.function.append_basic_block(name) for name in ("again", "done"))
        self.builder.branch(inside)
        self.builder.position_at_end(inside)
        yield lambda ends: self.builder.cbranch(ends, after, inside)
        self.builder.position_at_end(after)

    @contextmanager
    def when(self, condition: Any) -> Iterator[None]:
        """Emit code that runs if the condition holds."""
        with self.builder.if_then(condition):
            yield

    def leave(self, condition: Any) -> None:
        """Emit a return from the function if the condition holds."""
        with self.builder.if_then(condition):
            self.builder.ret_void()

    def call(self, function: Any, *arguments: Any) -> Any:
        return self.builder.call(function, [self.whole(argument) for argument in arguments])

    def call_address(self, address: Any, kinds: Sequence[Any], *arguments: Any) -> None:
        """Call the function at an address (an integer), with arguments of these types."""
        pointer = self.builder.inttoptr(address, PTR)
        kind = ir.FunctionType(VOID, kinds)
        self.builder.call(_Pointed(pointer, kind), [self.whole(argument) for argument in arguments])

    def outside(self, name: str, result: Any, kinds: Sequence[Any], *, varies: bool = False) -> Any:
        """Declare a function of the C library or an intrinsic of LLVM."""
        if name in self.module.globals:
            return self.module.globals[name]
        return ir.Function(self.module, ir.FunctionType(result, kinds, var_arg=varies), name)

    # Vectors

    def splat(self, value: Any, lanes: int) -> Any:
        """Return a vector with the same value in every lane."""
        kind = vector(value.type, lanes)
        one = self.builder.insert_element(ir.Constant(kind, ir.Undefined), value, I32(0))
        return self.builder.shuffle_vector(one, ir.Constant(kind, ir.Undefined), ir.Constant(vector(I32, lanes), None))

    def number(self, value: float, lanes: int | None = None) -> Any:
        """Return a float constant, or a vector of it if `lanes` is given."""
        return ir.Constant(F32, value) if lanes is None else ir.Constant(vector(F32, lanes), [value] * lanes)

    def fma(self, one: Any, other: Any, more: Any) -> Any:
        """Return one · other + more, rounded once if the processor has fused multiply-add."""
        if not self.processor.has_fma:
            return self.builder.fadd(self.builder.fmul(one, other), more)
        kind = one.type
        suffix = f"v{kind.count}f32" if isinstance(kind, ir.VectorType) else "f32"
        return self.builder.call(self.outside(f"llvm.fma.{suffix}", kind, [kind] * 3), [one, other, more])

    def total(self, values: Any) -> Any:
        """Return the sum of all lanes: halves are added until one value is left."""
        lanes = values.type.count
        while lanes > 1:
            lanes //= 2
            low, high = (ir.Constant(vector(I32, lanes), list(range(first, first + lanes))) for first in (0, lanes))
            nothing = ir.Constant(values.type, ir.Undefined)
            parts = (self.builder.shuffle_vector(values, nothing, part) for part in (low, high))
            values = self.builder.fadd(*parts)
        return self.builder.extract_element(values, I32(0))

    def highest(self, values: Any) -> Any:
        """Return the largest lane."""
        name = f"llvm.vector.reduce.fmax.v{values.type.count}f32"
        return self.builder.call(self.outside(name, F32, [values.type]), [values])

    def larger(self, one: Any, other: Any) -> Any:
        """Return the larger value of each lane."""
        return self.builder.select(self.builder.fcmp_ordered(">", one, other), one, other)

    def floats(self, codes: Any, *, signed: bool = False) -> Any:
        """Convert integers to floats; unsigned codes are below 2³¹, and the signed conversion is cheaper."""
        lanes = codes.type.count
        wide = vector(I32, lanes)
        if codes.type.element.width < 32:
            codes = self.builder.sext(codes, wide) if signed else self.builder.zext(codes, wide)
        return self.builder.sitofp(codes, vector(F32, lanes))

    def singles(self, bits: Any) -> Any:
        """Reinterpret 32-bit words as single-precision numbers."""
        return self.builder.bitcast(bits, vector(F32, bits.type.count))

    def halves(self, bits: Any) -> Any:
        """Convert IEEE half-precision numbers, given as 16-bit words, to single precision."""
        lanes = bits.type.count
        if self.processor.has_halves:
            return self.builder.fpext(self.builder.bitcast(bits, vector(HALF, lanes)), vector(F32, lanes))
        wide = self.builder.zext(bits, vector(I32, lanes))
        size = self.shift_left(self.mask(wide, 0x7FFF), 13)  # exponent and fraction in single-precision layout
        finite = self.builder.fmul(self.singles(size), self.number(2.0**112, lanes))  # the exponents' biases differ
        infinite = self.singles(self.builder.or_(size, self.words(0x7F800000, lanes)))
        is_infinite = self.builder.icmp_signed(">=", size, self.words(0x7C00 << 13, lanes))
        found = self.builder.bitcast(self.builder.select(is_infinite, infinite, finite), wide.type)
        return self.singles(self.builder.or_(found, self.shift_left(self.mask(wide, 0x8000), 16)))

    def bfloats(self, bits: Any) -> Any:
        """Convert bfloat16 numbers, given as 16-bit words, to single precision."""
        lanes = bits.type.count
        wide = self.builder.zext(bits, vector(I32, lanes))
        return self.builder.bitcast(self.shift_left(wide, 16), vector(F32, lanes))

    def shift_left(self, values: Any, by: int) -> Any:
        return self.builder.shl(values, ir.Constant(values.type, [by] * values.type.count)) if by else values

    def shift_right(self, values: Any, by: Any) -> Any:
        """Shift right by a constant or by a run-time value."""
        if isinstance(by, int):
            return self.builder.lshr(values, ir.Constant(values.type, [by] * values.type.count)) if by else values
        return self.builder.lshr(values, self.splat(by, values.type.count))

    def words(self, value: int, lanes: int) -> Any:
        """Return a 32-bit integer constant in every lane."""
        return ir.Constant(vector(I32, lanes), [value] * lanes)

    def mask(self, values: Any, bits: int) -> Any:
        return self.builder.and_(values, ir.Constant(values.type, [bits] * values.type.count))


class _Pointed:
    """Wraps an address so that llvmlite can call it."""

    def __init__(self, pointer: Any, kind: Any) -> None:
        self.pointer, self.function_type = pointer, kind
        self.type = PTR
        self.attributes: Any = ()

    def get_reference(self) -> str:
        reference: str = self.pointer.get_reference()
        return reference
