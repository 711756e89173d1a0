"""What is kept once for all experts of a layer is there under every expert's own name, and nowhere else."""

import pytest

from siltwin.models.config import read_config
from siltwin.models.graph import build_graph, parameter_shapes
from siltwin.models.of_tensors import OfTensors
from siltwin.models.packs.plan import QuantPlan
from siltwin.models.packs.quantization_config import read_quantization
from siltwin.models.shelf import shipped_configs


def _layers() -> OfTensors[str]:
    held: OfTensors[str] = OfTensors({"embed": "first"})
    held.add(12, {"layers.1.experts.{}.up": "up", "layers.1.experts.{}.down": "down"})
    held["head"] = "last"
    return held


def test_names_come_in_order_one_expert_after_the_other() -> None:
    names = list(_layers())
    assert names[:4] == ["embed", "layers.1.experts.0.up", "layers.1.experts.0.down", "layers.1.experts.1.up"]
    assert names[-2:] == ["layers.1.experts.11.down", "head"]
    assert len(names) == len(_layers()) == 26


def test_every_name_that_is_listed_is_found_and_equal_to_a_plain_dict() -> None:
    held = _layers()
    plain = {"embed": "first", "head": "last"}
    plain |= {f"layers.1.experts.{e}.{half}": half for e in range(12) for half in ("up", "down")}
    assert held == plain
    assert {name: held[name] for name in plain} == plain


@pytest.mark.parametrize(
    "name",
    [
        "layers.1.experts.12.up",  # one past the last
        "layers.1.experts.01.up",  # not how a number is written
        "layers.1.experts.{}.up",
        "layers.2.experts.3.up",
        "layers.1.experts.3.gate",
        "layers.1.experts.-3.up",
        "layers.1.experts..up",
        "",
    ],
)
def test_a_name_that_is_not_listed_is_not_there(name: str) -> None:
    assert name not in _layers() and _layers().place(name) is None


def test_a_selection_that_differs_by_expert_is_told_apart_where_it_is_asked_for() -> None:
    odd = _layers().select(
        lambda name, value: value.upper() if name.endswith(".7.up") else None, numbers=lambda pattern, count: (0, 7)
    )
    assert dict(odd) == {"layers.1.experts.7.up": "UP"}


def test_a_selection_of_all_experts_alike_keeps_their_pattern() -> None:
    ups = _layers().select(lambda name, value: value if value == "up" else None)
    assert len(ups) == 12 and list(ups.weighed()) == [("up", 12)]
    place = ups.place("layers.1.experts.10.up")
    assert place is not None and place == ("layers.1.experts.{}.up", 10)
    assert ups.place("layers.1.experts.10.down") is None


def _plan(*ignore: str) -> QuantPlan:
    raw = {
        "quantization_config": {
            "quant_method": "compressed-tensors",
            "format": "mxfp4-pack-quantized",
            "config_groups": {
                "group_0": {
                    "targets": ["Linear"],
                    "weights": {
                        "num_bits": 4,
                        "type": "float",
                        "strategy": "group",
                        "group_size": 32,
                        "symmetric": True,
                        "scale_dtype": "torch.uint8",
                    },
                }
            },
            "ignore": list(ignore),
        }
    }
    plan = read_quantization(raw, "a test")
    assert plan is not None
    return plan


@pytest.mark.parametrize(
    "ignore",
    [
        (),
        ("re:.*shared.*",),
        ("layers.1.experts.57.up",),
        (r"re:layers\.1\.experts\..\.up",),  # numbers of one digit
        (r"re:layers\.1\.experts\.\w\w\.up",),
        (r"re:.*experts\.[4-6]\..*",),
        (r"re:.*experts\.(?P<a>.)(?P=a)\..*",),
        (r"re:.*experts\.1.*", "re:.*lm_head.*"),
    ],
)
def test_the_numbers_that_a_plan_asks_for_tell_all_experts_of_a_pattern(ignore: tuple[str, ...]) -> None:
    plan = _plan(*ignore)
    held: OfTensors[str] = OfTensors()
    held.add(110, {"layers.1.experts.{}.up.weight": "", "layers.1.experts.{}.down.weight": ""})

    def group(name: str, _: str) -> object:
        return plan.group_of(name.removesuffix(".weight"))

    expected = {name for name in held if group(name, "") is not None}
    assert set(held.select(group, plan.telling)) == expected


def test_a_plan_that_names_no_number_is_asked_for_one_expert_of_each_length() -> None:
    assert list(_plan("re:.*self_attn.*").telling("layers.1.experts.{}.up.weight", 896)) == [0, 10, 100]
    assert list(_plan("layers.1.experts.57.up").telling("layers.1.experts.{}.up.weight", 8)) == [0]


def test_shelf_models_are_listed_by_patterns() -> None:
    """A quarter of a million tensors of Kimi K3 stand in a few thousand entries."""
    shapes = parameter_shapes(build_graph(read_config(shipped_configs()["Kimi-K3"])))
    assert len(list(shapes.weighed())) < 3000 < 247_296 < len(shapes)
