"""The lines of a budget: what the buffers of one kind of card take, each with the formula that gives its bytes."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

from ..emulator.hbm import PADDING_TAG
from ..isa.instruction import TensorType
from ..isa.operands import Ref
from ..isa.program import Binding, Block, BoundShapes, Buffer, Program, Space
from ..isa.quantised import DEQUANTISE
from ..isa.work import Unit
from ..models.blocks import Attention, LatentAttention
from .budget import Load, Profile
from .lowering.arena import ArenaPlan, live_ranges, plan_arena
from .lowering.passes.offload import STAGING
from .lowering.reach import WHOLE
from .lowering.stage import STATES
from .memory import DEVICE_SPACES, KV_TAG, STATE_TAG, WORKSPACE_TAG, bytes_of_buffer, page_bytes_of
from .plan import JobPlan
from .report_plan import BudgetLine

LAYER = re.compile(r"(?<=layers\.)\d+")
MOST_LOCALS_NAMED = 4
ARENA = Space.ACTIVATION.value
KINDS = {"state": "recurrent states", "tail": "tails of convolutions", "index_cache": "index keys"}


def lines_of(plan: JobPlan, profile: Profile, load: Load) -> list[BudgetLine]:
    """All that a card of a profile holds at its peak, whose holder keeps `load`."""
    lines = [*_static_lines(plan, profile), *_arena_lines(plan, profile), *_cache_lines(plan, profile, load)]
    workspace = profile.workspace_bytes(plan)
    if workspace:
        formula = "the most that an instruction keeps beside its operands"
        lines.append(
            BudgetLine(tag=WORKSPACE_TAG, what="latent attention", name="", formula=formula, num_bytes=workspace)
        )
    whole = profile.static_bytes(plan) + profile.cache_bytes(plan, load)
    padding = whole - sum(line.num_bytes for line in lines)
    if padding:
        lines.append(BudgetLine(tag=PADDING_TAG, what="rounding", name="", formula="up to granules", num_bytes=padding))
    return lines


def _static_lines(plan: JobPlan, profile: Profile) -> Iterator[BudgetLine]:
    """Buffers that stand from load to the end: those of all layers that are alike in one line."""
    kinds = _weight_kinds(plan, profile)
    alike: Counter[tuple[Space, str, str, TensorType]] = Counter()
    for name, buffer in profile.buffers.items():
        alike[buffer.space, kinds.get(name, buffer.space.value), LAYER.sub("*", name), buffer.type] += 1
    for space in DEVICE_SPACES:
        for (of, what, name, kind), count in alike.items():
            if of is space:
                formula = f"{_times(count)}{_shape(kind, plan.largest)}"
                each = bytes_of_buffer(Buffer(name, kind, space), plan.largest)
                yield BudgetLine(tag=space.value, what=what, name=name, formula=formula, num_bytes=count * each)


def _weight_kinds(plan: JobPlan, profile: Profile) -> dict[str, str]:
    """By buffer, how the layout shares a weight out and what it is: "expert mxfp4", "replicated scale"."""
    kinds: dict[str, str] = {}
    for weight in plan.built(profile.rank, plan.variants[0]).weights:
        if weight.packed is None:
            kinds[weight.name] = f"{weight.bucket} {weight.type.dtype.name}"
            continue
        for part in weight.packed.types:
            kind = weight.packed.form.element.name if part == "codes" else "scale" if part == "scales" else part
            kinds[f"{weight.name}.{part}"] = f"{weight.bucket} {kind}"
    return kinds


def _times(count: int) -> str:
    return f"{count:,} x " if count > 1 else ""


def _shape(kind: TensorType, largest: Binding) -> str:
    """A type with the number of every side: `[tokens 16, 7168] x 2 B (bf16)`."""
    sides = (f"{side}" if isinstance(side, int) else f"{side} {largest.extents[side][0]}" for side in kind.shape)
    bits = kind.dtype.bits
    return f"[{', '.join(sides)}] x {bits // 8 if bits % 8 == 0 else bits / 8:g} B ({kind.dtype.name})"


def _arena_lines(plan: JobPlan, profile: Profile) -> Iterator[BudgetLine]:
    """The activation arena at the place that makes it as large as it is: what lives there, by what it is for."""
    arenas = [(plan_arena(program, plan.largest), program) for program in profile.programs]
    arena, program = max(arenas, key=lambda made: made[0].num_bytes)
    if not arena.num_bytes:
        return
    block = program.block[max(arena.offsets, key=lambda key: arena.offsets[key] + arena.sizes[key])[0]]
    shapes = BoundShapes(block, program.group_sizes, plan.largest)
    live, at = _fullest(block, arena)
    instruction = type(block.body[at].instruction).__name__
    roles = _roles(block)
    by_role: dict[str, list[str]] = defaultdict(list)
    for local in live:
        by_role[roles.get(local, "activations")].append(local)
    for role, locals_ in by_role.items():
        locals_.sort(key=lambda local: -arena.sizes[block.name, local])
        terms = [f"{local} {list(shapes.shape(Ref(local)))} {block.types[local].dtype.name}" for local in locals_]
        more = len(terms) - MOST_LOCALS_NAMED
        formula = " + ".join(terms[:MOST_LOCALS_NAMED]) + (f" + {more} smaller" if more > 0 else "")
        taken = sum(arena.sizes[block.name, local] for local in locals_)
        name = f"arena, in {instruction} of {block.name}"
        yield BudgetLine(tag=ARENA, what=f"arena: {role}", name=name, formula=formula, num_bytes=taken)
    gaps = arena.num_bytes - sum(arena.sizes[block.name, local] for local in live)
    if gaps:
        formula = f"{arena.num_bytes:,} B laid out - what lives at once"
        yield BudgetLine(tag=ARENA, what="arena: gaps", name=f"arena of {block.name}", formula=formula, num_bytes=gaps)


def _fullest(block: Block, arena: ArenaPlan) -> tuple[list[str], int]:
    """The locals that live at the place of a block where they take most together, and that place."""
    ranges = live_ranges(block)
    live = [[local for local, (first, last) in ranges.items() if first <= at <= last] for at in range(len(block.body))]
    at = max(range(len(live)), key=lambda at: sum(arena.sizes[block.name, local] for local in live[at]))
    return live[at], at


def _roles(block: Block) -> dict[str, str]:
    """Locals that are no plain activations: what crosses links, and weights that are decoded for their product."""
    roles: dict[str, str] = {}
    for issue in block.body:
        if type(issue.instruction).unit is Unit.LINK:
            roles |= {ref.buffer: "communication" for ref, _ in issue.instruction.refs()}
        elif isinstance(issue.instruction, DEQUANTISE):
            roles[issue.instruction.dst.buffer] = "decoded weights"
    return roles


def _cache_lines(plan: JobPlan, profile: Profile, load: Load) -> Iterator[BudgetLine]:
    """KV pages and states by the kind of layer that keeps them."""
    pages = {WHOLE.pages: load.all_pages, STATES: load.states} | {reach.pages: n for reach, n in load.limited}
    alike: Counter[tuple[str, str, TensorType]] = Counter()
    for program in profile.programs[:1]:
        for buffer in _caches(program):
            alike[_kind_of_cache(plan, buffer), LAYER.sub("*", buffer.name), buffer.type] += 1
    reserved = 0
    for (what, name, kind), count in alike.items():
        rows, each = str(kind.shape[0]), page_bytes_of(Buffer(name, kind, Space.KV))
        tag, unit = (STATE_TAG, "sequences") if rows == STATES else (KV_TAG, "pages")
        taken = count * pages[rows] * each
        reserved += taken if rows == WHOLE.pages else 0
        formula = f"{_times(count)}{_pages(load, rows, pages[rows], unit)} x {_shape(_one(kind), plan.largest)}"
        yield BudgetLine(tag=tag, what=what, name=name, formula=formula, num_bytes=taken)
    yield from _tails(plan, profile, load, reserved)


def _tails(plan: JobPlan, profile: Profile, load: Load, used: int) -> Iterator[BudgetLine]:
    """What mapping whole granules adds to the pages."""
    if plan.kv_policy.name != "virtual":
        return
    own, held, mapped = profile.footprint, 0, 0
    for pages, count in load.pages:
        blocks, size = plan.kv_policy.blocks(own.caches, own.page_bytes, 0, pages)
        held, mapped = held + count * blocks * size, mapped + count * blocks
    formula = f"{mapped:,} granules x {plan.kv_policy.granule_bytes:,} B - {used:,} B of pages"
    yield BudgetLine(tag=KV_TAG, what="ends of granules", name="", formula=formula, num_bytes=held - used)


def _caches(program: Program) -> Iterator[Buffer]:
    return (buffer for buffer in program.buffers if buffer.space in (Space.KV, Space.STATE))


def _one(kind: TensorType) -> TensorType:
    return TensorType(kind.dtype, kind.shape[1:])


def _pages(load: Load, rows: str, total: int, unit: str) -> str:
    """`(16 sequences x 2,049 pages)`, or their number where sequences differ."""
    if rows == WHOLE.pages and len(load.pages) == 1:
        (each, count) = load.pages[0]
        return f"({count:,} sequences x {each:,} pages)"
    return f"{total:,} {unit}"


def _kind_of_cache(plan: JobPlan, buffer: Buffer) -> str:
    """Which kind of layer keeps a cache."""
    if buffer.name.startswith(STAGING):
        return "staging of caches in host memory"
    found = re.match(r"layers\.(\d+)\.(\w+)(.*)", buffer.name)
    assert found is not None, f"{buffer.name} is no layer's"
    if found[2] in KINDS:
        return KINDS[found[2]]
    attention = plan.graph.layers[int(found[1])].attention
    if isinstance(attention, LatentAttention):
        return "latents"
    if isinstance(attention, Attention) and (attention.window or attention.chunk):
        kind = f"window of {attention.window}" if attention.window else f"chunks of {attention.chunk}"
        return f"keys and values, {kind}"
    return "keys and values"


def by_tag(lines: list[BudgetLine]) -> Mapping[str, int]:
    """Bytes of every tag that has any, as a run counts them."""
    total: Counter[str] = Counter()
    for line in lines:
        total[line.tag] += line.num_bytes
    return {tag: num_bytes for tag, num_bytes in total.items() if num_bytes}
