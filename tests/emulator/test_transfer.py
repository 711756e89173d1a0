"""A card under constants that were fitted on another."""

from siltwin.emulator.evidence import Evidence
from siltwin.emulator.spec import CardSpec, load_card
from siltwin.emulator.transfer import transferred
from siltwin.emulator.tuning import UNTOLD


def test_what_was_fitted_on_one_card_is_only_assumed_of_another_and_says_so() -> None:
    calibrated = Evidence(evidence="calibrated", source="30 points", error=0.1)
    h100 = load_card("h100-sxm")
    evidence = {**h100.evidence, "tuning.matmul": calibrated}
    fitted = CardSpec.model_validate({**h100.model_dump(), "kernels": "trtllm", "evidence": evidence})
    own = load_card("a100-sxm")
    assert len({own.fingerprint, fitted.fingerprint}) == 2  # known before, as a card that has run has it
    card = transferred(own, fitted)
    assert card.fingerprint not in (own.fingerprint, fitted.fingerprint)
    assert card.kernels == "trtllm" and card.tuning == fitted.tuning
    assert (card.name, card.clock_hz, card.hbm, card.l2) == (own.name, own.clock_hz, own.hbm, own.l2)
    found = card.evidence["tuning.matmul"]
    assert found == Evidence(evidence="assumed", source="carried over from h100-sxm (calibrated): 30 points")
    assert card.evidence["tuning"].source == f"carried over from h100-sxm (assumed): {UNTOLD.source}"
    assert card.evidence["hbm.bandwidth_bytes_per_s"] == own.evidence["hbm.bandwidth_bytes_per_s"]
