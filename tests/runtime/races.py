"""A check of waits that knows nothing of how they were chosen."""

from semaphore_bases import semaphore_bases

from siltwin.isa.operands import Role
from siltwin.isa.program import Program
from siltwin.runtime.lowering.lower import LoweredProgram


def races(program: Program, result: LoweredProgram) -> list[str]:
    """Pairs of instructions that touch the same bytes in an order that no chain of waits fixes.

    A whole program is unrolled into a graph: queue order, and for every wait an edge from the instruction that
    brings the counter there. This knows nothing of how the waits were chosen.
    """
    nodes: list[tuple[str, list[tuple[str, int, int, bool]]]] = []
    before: list[set[int]] = []
    in_queue: dict[str, list[int]] = {queue: [] for queue in program.queues}
    bases = semaphore_bases(program)
    for call, base in zip(program.calls, bases, strict=True):
        block = program.block[call.block]
        actual = dict(zip((name for name, _ in block.params), call.arguments, strict=True))
        for issue in block.body:
            needed = list(in_queue[issue.queue][-1:])
            for semaphore, count in issue.waits:
                target = base[semaphore] + count
                if target:
                    needed.append(in_queue[semaphore][target - 1])
            past: set[int] = set(needed)
            for node in needed:
                past |= before[node]
            touched = []
            for ref, role in issue.instruction.refs():
                key = (block.name, ref.buffer)
                if key in result.arena.offsets:
                    start = result.arena.offsets[key]
                    touched.append(("arena", start, start + result.arena.sizes[key], role is not Role.IN))
                else:
                    touched.append((actual[ref.buffer], 0, 1, role is not Role.IN))
            in_queue[issue.queue].append(len(nodes))
            nodes.append((f"{block.name}: {issue.instruction.mnemonic}", touched))
            before.append(past)
    found = []
    for later, (name, touched) in enumerate(nodes):
        for earlier in range(later):
            clash = any(
                a[0] == b[0] and a[1] < b[2] and b[1] < a[2] and (a[3] or b[3])
                for a in touched
                for b in nodes[earlier][1]
            )
            if clash and earlier not in before[later]:
                found.append(f"{nodes[earlier][0]} / {name}")
    return found
