"""How fast both calendars are: a decode step of six cards (tp=3, pp=2), 15 layers of 13 instructions a card.

Submission and the making of spans count; the loop alone stands beside for the compiled one.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time

from siltwin.emulator.cluster import Cluster
from siltwin.emulator.compiled.cluster import CompiledCluster
from siltwin.emulator.machines import Machines, Ran
from siltwin.emulator.spec import load_card
from siltwin.emulator.ticket import Submission
from siltwin.interconnect.cluster import make_cluster
from siltwin.isa.program import Binding, Program
from siltwin.isa.text import assemble

LAYERS, TP, PP = 15, 3, 2
LOOP_S: list[float] = []  # of every step, from submission to its end

LAYER = """
block layer
  param kv : bf16[pages, 16, 128]
  param w_norm : bf16[576]
  param w_qkv : bf16[320, 576]
  param w_out : bf16[576, 192]
  param w_gate : bf16[1024, 576]
  param w_down : bf16[576, 512]
  param x : bf16[tokens, 576]
  param slots : int32[tokens]
  param cos : bf16[8192, 32]
  param at : int32[tokens]
  param tables : int32[sequences, 64]
  param q_lens : int32[sequences]
  param kv_lens : int32[sequences]
  local h : bf16[tokens, 576]
  local qkv : bf16[tokens, 320]
  local ctx : bf16[tokens, 192]
  local d : bf16[tokens, 576]
  local gu : bf16[tokens, 1024]
  local act : bf16[tokens, 512]
  vector | rmsnorm dst=%h x=%x weight=%w_norm eps=1e-05 plus_one=no | wait link+0
  tensor | matmul dst=%qkv a=%h w=%w_qkv bias=- | wait vector+1
  vector | rope x=%qkv[0:256] cos=%cos sin=%cos positions=%at head_dim=64 rotary_dim=64 interleaved=no | wait tensor+1
  dma0 | scatter dst=%kv src=%qkv[192:320] index=%slots | wait vector+2
  tensor | attention dst=%ctx q=%qkv[0:192] cache=%kv tables=%tables q_lens=%q_lens kv_lens=%kv_lens \
q_extent=q_len kv_extent=kv_len heads=3 kv_heads=1 qk_dim=64 v_dim=64 scale=0.125 window=0 sinks=- | wait dma0+1
  tensor | matmul dst=%d a=%ctx w=%w_out bias=- | wait tensor+2
  link | all_reduce x=%d group=tp | wait tensor+3
  vector | add_rmsnorm dst=%h x=%x delta=%d weight=%w_norm eps=1e-05 plus_one=no | wait link+1
  tensor | matmul dst=%gu a=%h w=%w_gate bias=- | wait vector+3
  vector | gated dst=%act x=%gu activation=silu | wait tensor+4
  tensor | matmul dst=%d a=%act w=%w_down bias=- | wait vector+4
  link | all_reduce x=%d group=tp | wait tensor+5
  vector | add dst=%x a=%x b=%d | wait link+2
end
"""

HEAD = """program stage{stage}
queue tensor
queue vector
queue dma0
queue link
extent tokens
extent pages
extent sequences
extent q_len[]
extent kv_len[]
group tp 3
group pp 2
buffer kv : bf16[pages, 16, 128] kv
buffer w_norm : bf16[576] weight
buffer w_qkv : bf16[320, 576] weight
buffer w_out : bf16[576, 192] weight
buffer w_gate : bf16[1024, 576] weight
buffer w_down : bf16[576, 512] weight
buffer x : bf16[tokens, 576] activation
buffer slots : int32[tokens] input
buffer cos : bf16[8192, 32] table
buffer at : int32[tokens] input
buffer tables : int32[sequences, 64] input
buffer q_lens : int32[sequences] input
buffer kv_lens : int32[sequences] input
block hand_over
  param x : bf16[tokens, 576]
  {hand_over}
end
"""


def stage_program(stage: int) -> Program:
    """The program that every tensor-parallel rank of a stage executes."""
    hand_over = "link | send x=%x group=pp peer=1 | wait vector+0" if stage == 0 else "link | recv x=%x group=pp peer=0"
    layers = ["call layer kv w_norm w_qkv w_out w_gate w_down x slots cos at tables q_lens kv_lens"] * LAYERS
    calls = [*layers, "call hand_over x"] if stage == 0 else ["call hand_over x", *layers]
    text = HEAD.format(stage=stage, hand_over=hand_over).replace("block hand_over", LAYER + "block hand_over")
    return assemble(text + "\n".join(calls) + "\n")


def step(cluster: Machines, programs: list[Program], length: int) -> Ran:
    """One step of all cards, from submission to its last span."""
    submissions = []
    for rank in range(TP * PP):
        stage, index = divmod(rank, TP)
        groups = {"tp": tuple(range(stage * TP, stage * TP + TP)), "pp": (index, TP + index)}
        extents = {"tokens": (1,), "sequences": (1,), "pages": (64,), "q_len": (1,), "kv_len": (length,)}
        binding = Binding(extents, {"tp": index, "pp": stage})
        submissions.append(Submission(rank, programs[stage], binding, groups))
    ran = cluster.start(submissions)
    begin = time.perf_counter()
    cluster.finish(ran)
    LOOP_S.append(time.perf_counter() - begin)
    return ran


def main() -> None:
    """Time steps; the best of several rounds counts, since the machine has other work."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10, help="steps a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--profile", action="store_true", help="say where the time goes")
    options = parser.parse_args()
    programs = [stage_program(stage) for stage in range(PP)]
    topology = make_cluster("full_mesh", TP * PP, 28 * 10**9, 10**6).topology()
    for engine in (Cluster, CompiledCluster):
        measure(engine(load_card("ascend-910b2"), topology), programs, options)


def measure(cluster: Machines, programs: list[Program], options: argparse.Namespace) -> None:
    """Time steps on one engine, and print."""
    activities = len(step(cluster, programs, 1).spans)
    if options.profile:
        with cProfile.Profile() as profile:
            for _ in range(options.steps):
                step(cluster, programs, 1)
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)
        return
    for what, grows in (("equal steps", 0), ("a token longer at each step", 1)):
        best_s = float("inf")
        LOOP_S.clear()
        for number in range(options.rounds):
            begin = time.perf_counter()
            for index in range(options.steps):
                step(cluster, programs, 1 + grows * (number * options.steps + index))
            best_s = min(best_s, (time.perf_counter() - begin) / options.steps)
        print(
            f"{type(cluster).__name__}, {what}: {activities} activities in {1e3 * best_s:.1f} ms: "
            f"{activities / best_s:,.0f} a second; from submission to end {1e3 * min(LOOP_S):.2f} ms"
        )


if __name__ == "__main__":
    main()
