"""Every instruction, whatever it is: declared whole, unlike any other, the same in bytes, in text and on its page."""

import inspect
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siltwin.isa.document import isa_page
from siltwin.isa.dtype import DTYPES, DType
from siltwin.isa.errors import ProgramError
from siltwin.isa.formats.form import form_of
from siltwin.isa.formats.scheme import SCHEMES
from siltwin.isa.instruction import REGISTRY, Instruction, Memory, Shapes, Sizes
from siltwin.isa.operands import MAX_UINT, Kind, NameKind, Reader, Ref, Writer, kind_of
from siltwin.isa.registry import BY_OPCODE, INSTRUCTIONS, MODULES, decode_instruction, parse_instruction
from siltwin.isa.work import Unit, Work

ALL = list(INSTRUCTIONS.values())
NAMES = st.builds(str.__add__, st.sampled_from("aZ_"), st.text("abZ09_./:-", max_size=8))
REFS = st.one_of(
    st.builds(Ref, NAMES),
    st.builds(Ref, NAMES, st.integers(0, 1 << 40), st.integers(1, 1 << 40)),
    st.builds(Ref, NAMES, st.just(0), st.integers(1, 1 << 40), NAMES),
)


def values_of(kind: Kind) -> st.SearchStrategy[Any]:
    """Any legal value of an operand kind, read off what the kind itself says."""
    if kind.role:
        return REFS | st.none() if kind.optional else REFS
    if kind.names is NameKind.NUMBER:
        return NAMES | st.integers(-MAX_UINT - 1, MAX_UINT)
    if kind.names:
        return NAMES
    by_label = {
        "integer": st.integers(-MAX_UINT - 1, MAX_UINT),
        "number": st.floats(allow_nan=False, allow_infinity=False),
        "yes | no": st.booleans(),
        "dtype": st.sampled_from(list(DTYPES.values())),
        "form": st.sampled_from([form_of(scheme) for scheme in SCHEMES.values()]),
    }
    return by_label[kind.label] if kind.label in by_label else st.sampled_from(kind.label.split(" | "))


def instances(cls: type[Instruction]) -> st.SearchStrategy[Instruction]:
    return st.fixed_dictionaries({n: values_of(k) for n, k in cls.operands.items()}).map(lambda v: cls(**v))


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.mnemonic)
def test_bytes_and_text_give_an_instruction_back(cls: type[Instruction]) -> None:
    @settings(max_examples=25, deadline=None)
    @given(instances(cls))
    def holds(instruction: Instruction) -> None:
        writer = Writer()
        instruction.encode(writer)
        reader = Reader(bytes(writer.data), list(writer.strings))
        assert decode_instruction(reader) == instruction
        assert reader.position == len(writer.data)
        assert parse_instruction(str(instruction)) == instruction
        assert all(kind.legal(getattr(instruction, name)) for name, kind in cls.operands.items())

    holds()


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.mnemonic)
def test_every_instruction_states_its_rules_its_work_and_its_meaning(cls: type[Instruction]) -> None:
    assert inspect.getdoc(cls) and not inspect.getdoc(cls).startswith(f"{cls.__name__}("), (
        "dataclass wrote the docstring"
    )
    assert {"check", "work"} <= vars(cls).keys()
    assert ("execute" in vars(cls)) == (cls.unit is not Unit.LINK)


@pytest.mark.parametrize("cls", [c for c in ALL if c.unit is Unit.LINK], ids=lambda cls: cls.mnemonic)
def test_a_link_instruction_means_its_expansion(cls: type[Instruction]) -> None:
    with pytest.raises(ProgramError, match=f"{cls.mnemonic} crosses cards: its meaning is its expansion"):
        Instruction.execute(object.__new__(cls), None)  # type: ignore[arg-type]


def test_registries_agree_and_every_module_is_listed() -> None:
    assert set(INSTRUCTIONS.values()) == set(BY_OPCODE.values()) == set(REGISTRY.values())
    assert {cls.__module__ for cls in ALL} == {module.__name__ for module in MODULES}
    assert list(BY_OPCODE) == sorted(BY_OPCODE)
    assert all(mnemonic == cls.__name__.lower() for mnemonic, cls in INSTRUCTIONS.items())


def test_the_instruction_set_has_what_dense_decoders_need() -> None:
    needed = """matmul attention rmsnorm layernorm rope gated add scale embedding softmax argmax sample cast copy
    gather scatter host_load host_store send recv recv_reduce all_reduce all_gather reduce_scatter broadcast barrier
    reduce all_to_all link_gather link_scatter wait signal halt route permute grouped_matmul grouped_gated combine"""
    assert set(needed.split()) <= INSTRUCTIONS.keys()


def declare(name: str, opcode: int, unit: Unit = Unit.VECTOR, **body: Any) -> None:
    def check(self: Instruction, t: Shapes) -> None: ...
    def work(self: Instruction, s: Sizes) -> Work:
        return Work(Unit.VECTOR)

    def execute(self: Instruction, m: Memory) -> None: ...

    whole = {"__doc__": "A test.", "__module__": __name__, "check": check, "work": work, "execute": execute}
    type(name, (Instruction,), whole | body, opcode=opcode, unit=unit)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("name", "opcode", "body", "message"),
    [
        ("NEW", 0x10, {}, "NEW: opcode 0x10 already belongs to MATMUL"),
        ("Matmul", 0x7000, {}, "Matmul: mnemonic 'matmul' already belongs to MATMUL"),
        ("NEW", -1, {}, "NEW: opcode -1 is negative"),
        ("NEW", 0x7000, {"__doc__": None}, "NEW: the declaration lacks __doc__"),
        ("NEW", 0x7000, {"check": None, "work": None}, "NEW: the declaration lacks check, work"),
        ("NEW", 0x7000, {"execute": None}, "NEW: the declaration lacks execute"),
    ],
)
def test_a_clash_or_a_gap_is_refused_at_declaration(name: str, opcode: int, body: dict[str, Any], message: str) -> None:
    before = dict(REGISTRY)
    with pytest.raises(ProgramError, match=message):
        declare(name, opcode, **body)
    assert before == REGISTRY, "a refused declaration leaves nothing behind"


def test_an_operand_type_without_a_codec_is_refused() -> None:
    for hint in (str, bytes, Annotated[int, "mark"], list[int], int | None):
        with pytest.raises(TypeError, match="no operand kind for a field of type"):
            kind_of(hint)


@pytest.mark.parametrize(
    ("label", "value"),
    [
        (int, True),
        (int, 1.0),
        (int, 1 << 63),
        (int, -(1 << 63) - 1),
        (float, float("nan")),
        (float, float("inf")),
        (float, "1"),
        (float, (1 << 62) + 1),
        (bool, 1),
        (DType, "fp32"),
    ],
)
def test_values_of_another_type_are_not_legal_operands(label: Any, value: Any) -> None:
    assert not kind_of(label).legal(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "unknown instruction ''"),
        ("   ", "unknown instruction ''"),
        ("fly", "unknown instruction 'fly'; known: matmul,"),
        ("add dst=%a a=%b", "add: operands missing: b"),
        ("add dst=%a a=%b b=%c c=%d", "'c=%d' is not one of its operands"),
        ("add dst=%a a=%b a=%b b=%c", "'a=%b' is not one of its operands .*each once"),
        ("add dst=a a=%b b=%c", "add: dst: 'a' is not a buffer operand"),
        ("add dst=- a=%b b=%c", "add: dst: '-' is not a buffer operand"),
        ("add dst=%a[3:3] a=%b b=%c", "takes no columns"),
        ("add dst=%a[5:3] a=%b b=%c", "takes no columns"),
        ("add dst=%a[-1:3] a=%b b=%c", "is not a buffer operand"),
        (f"add dst=%a[0:{'9' * 5000}] a=%b b=%c", "is not a buffer operand"),
        ("add dst=%a[0:9223372036854775808] a=%b b=%c", "columns need 0 <= start < stop"),
        ("scale dst=%a x=%b factor=nan", "'nan' is not a finite number"),
        ("scale dst=%a x=%b factor=1e999", "'1e999' is not a finite number"),
        ("scale dst=%a x=%b factor=x", "factor: 'x' is not a number"),
        ("send x=%a group=g peer=1.5", "peer: '1.5' is not a whole number"),
        ("send x=%a group=g peer=9223372036854775808", "is not a whole number of at most 64 bits"),
        (f"send x=%a group=g peer={'9' * 400}", "is not a whole number of at most 64 bits"),
        ("send x=%a group=g peer=\u0663", "is not a whole number"),
        ("send x=%a group=2g peer=1", "group: '2g' is not a name"),
        ("gated dst=%a x=%b activation=relu", "'relu' is not one of silu, gelu, gelu_tanh, swiglu_oai"),
        ("rmsnorm dst=%a x=%b weight=%c eps=0 plus_one=true", "'true' is not yes or no"),
    ],
)
def test_a_wrong_instruction_text_is_refused_by_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        parse_instruction(text)


@pytest.mark.parametrize("arguments", [("a", 1), ("a", -1, 2), ("a", 0, 0), ("a", 0, -1), ("a", MAX_UINT, 1)])
def test_a_ref_to_columns_that_cannot_be_is_refused(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(ProgramError, match="need"):
        Ref(*arguments)


def test_refs_overlap_where_they_share_a_column() -> None:
    assert Ref("a").overlaps(Ref("a", 3, 1)) and Ref("a", 3, 1).overlaps(Ref("a"))
    assert Ref("a", 0, 4).overlaps(Ref("a", 3, 1))
    assert not Ref("a", 0, 4).overlaps(Ref("a", 4, 1)) and not Ref("a", 4, 1).overlaps(Ref("a", 0, 4))
    assert not Ref("a").overlaps(Ref("b")) and not Ref("a").overlaps(None)


def test_the_isa_page_is_current() -> None:
    page = (Path(__file__).parents[2] / "docs" / "isa.md").read_text()
    assert page == isa_page(), "run `python -m siltwin.isa.document > docs/isa.md`"
    assert all(f"### `{mnemonic}` (opcode {cls.opcode:#04x}" in page for mnemonic, cls in INSTRUCTIONS.items())
