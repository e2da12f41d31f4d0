"""Why mutants survive: by module and name (`benchmarks.mutations.Mutant.name`).

An explanation that begins with "Equivalent" says that no result changes.
"""

from __future__ import annotations

_ONE_DEVICE = "Equivalent on a machine with one device; tests/gpu has two."

EXPLAINED: dict[tuple[str, str], str] = {
    (
        "estimators/importance.py",
        "diagnose | compare | worst / n < NEGLIGIBLE_ESS_LOSS → (worst / n <= NEGLIGIBLE_ESS_LOSS) | 0",
    ): "Equivalent unless ESS/n is exactly the threshold, to the last bit.",
    (
        "estimators/rounding.py",
        "rounding_floor | constant | 0 → (-1) | 2",
    ): "Equivalent: the vector has one entry.",
    (
        "estimators/sampler_match.py",
        " | constant | 0.7 → (1.7) | 0",
    ): "Equivalent: the search around 0.6 and 0.8 meets at 0.7, so that every temperature is found.",
    (
        "update/optimizer_rules.py",
        "choose_rule | constant | 0 → (-1) | 0",
    ): "Equivalent: the list has one entry (n=1).",
    (
        "attribution/fisher/block_model.py",
        "BlockModel | constant | False → True | 1",
    ): "Equivalent: the field is printed by repr() in addition.",
    (
        "attribution/fisher/kernel.py",
        "FisherKernel.sketch | constant | 0 → (1) | 0",
    ): "The default seed of the sketch is another one; none is better.",
    (
        "attribution/fisher/second_order.py",
        "_hessian_products | constant | True → False | 5",
    ): "Equivalent unless a parameter has a gradient and no second derivative at all; the policies of the tests have none.",
    (
        "attribution/gradients/gradient_store.py",
        "GradientStore.add | statement | rows = rows.to(held.device) → pass | 0",
    ): _ONE_DEVICE,
    (
        "attribution/gradients/held_vectors.py",
        "HeldVectors.__init__ | compare | where == \"device\" → (where != 'device') | 0",
    ): _ONE_DEVICE,
    (
        "attribution/influence/budget.py",
        "_require_closure | arithmetic | sum(map(abs, parts)) + float(attribution.sequences.abs().sum()) → (sum(map(abs, parts)) - float(attribution.sequences.abs().sum())) | 0",
    ): "The bound of the closure test becomes tighter where the parts cancel; no batch of the tests is so finely balanced.",
    (
        "attribution/influence/projection.py",
        " | constant | 4 → (5) | 0",
    ): "Equivalent: how many directions share a pass changes its memory only.",
    (
        "attribution/influence/reliability.py",
        "_halves | function | by_group[order[half : 2 * half]].sum(0) → by_group[order[half:2 * half]].mean(0) | 0",
    ): "The two orders of a split get other weights in the listed share; its mean is the same. Rank correlations do not change.",
    (
        "attribution/noise/scale.py",
        "_fieller | compare | pairs > 0 → (pairs >= 0) | 0",
    ): "Equivalent unless |G|² is exactly 0.",
    (
        "attribution/proxies/audit.py",
        "_estimate | constant | 10 → (11) | 0",
    ): "The interval is withheld from 1/11 in place of 1/10 of undefined draws on; no test has a share between.",
    (
        "attribution/proxies/audit_sample.py",
        "AuditSample._equal_prompts | constant | 0.0 → (1.0) | 0",
    ): "Equivalent: no prompts and one prompt are both too few for an interval.",
}
