"""The section `precision`: in which types the numbers of each stage are kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from pydantic import model_validator

from isentrope.config.stages import Refusals, Section
from isentrope.models.precision import Precision
from isentrope.system.log import log

Dtype = Literal["float64", "float32", "bfloat16"]


class ScoringPrecision(Section):
    """Precision of scorer and sampler; weights are kept in float32 and lose nothing between."""

    runtime_dtype: Literal["float64", "float32"] = "float64"
    """Type of the model where entropy (and its change) is measured."""
    entropy_dtype: Dtype = "float64"
    """Type of log-softmax and entropies."""
    allow_tf32: bool = False
    """Let matrix products round their inputs to 10 bits."""
    matmul_precision: Literal["highest", "high", "medium"] = "highest"
    """Matrix products in float32; high and medium need allow_tf32."""
    sampler_dtype: Dtype | None = None
    """Type of the model where responses are drawn; null: runtime_dtype."""

    @model_validator(mode="before")
    @classmethod
    def _tf32_that_is_off_stays_off(cls, content: Any) -> Any:
        """Run `allow_tf32: false` with `matmul_precision: high`, as the notes have it, exactly."""
        off = isinstance(content, Mapping) and content.get("allow_tf32") is False
        if not off or content.get("matmul_precision") != "high":
            return content
        log.warning(
            "precision.matmul_precision=high would turn on the TF32 that allow_tf32=false turns "
            "off: products keep float32 (highest), so changes are free of the noise of TF32."
        )
        return {**content, "matmul_precision": "highest"}

    def refusals(self) -> Refusals:
        """Nothing beside TF32 that is off and on, which `Precision` refuses."""
        yield not self.measuring, ""

    @property
    def measuring(self) -> Precision:
        """Precision of the measurement."""
        return self._with_dtype(self.runtime_dtype)

    @property
    def sampling(self) -> Precision:
        """Precision of the sampler."""
        return self._with_dtype(self.sampler_dtype or self.runtime_dtype)

    def _with_dtype(self, dtype: str) -> Precision:
        return Precision(dtype, self.entropy_dtype, self.allow_tf32, self.matmul_precision)


class UpdatePrecision(Section):
    """The step's gradient in mixed precision, as a trainer with bf16 or fp16 computes it."""

    use_amp: bool = False
    """true: the forward pass of the step's gradient runs in float32 under autocast."""
    amp_dtype: Literal["bfloat16", "float16"] = "bfloat16"
    """Type that autocast rounds the products to."""
    grads_fp32: bool = True
    """true, always: gradients are added up in float64 here."""

    def refusals(self) -> Refusals:
        """Rounded sums."""
        yield not self.grads_fp32, "grads_fp32: gradients are always added up in float64"


class PrecisionConfig(ScoringPrecision):
    """Precision of each stage; weights are kept in float32 and lose nothing between stages."""

    update_vector: Dtype | UpdatePrecision | None = None
    """Type of the model for the step's gradient, or {use_amp: true}; null: runtime_dtype."""

    @property
    def updating(self) -> Precision:
        """Precision of the update's gradient."""
        match self.update_vector:
            case UpdatePrecision(use_amp=True, amp_dtype=autocast):
                return replace(self._with_dtype("float32"), autocast=autocast)
            case str(dtype):
                return self._with_dtype(dtype)
            case _:
                return self._with_dtype(self.runtime_dtype)
