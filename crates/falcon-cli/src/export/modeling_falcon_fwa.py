"""What transformers load with trust_remote_code=True. The code is in the package falcon-fwa."""

from falcon_fwa import models

from .configuration_falcon_fwa import FalconFwaConfig


class FalconFwaModel(models.FalconFwaModel):
    """A Falcon model without its output matrix."""

    config_class = FalconFwaConfig


class FalconFwaForCausalLM(models.FalconFwaForCausalLM):
    """A Falcon language model."""

    config_class = FalconFwaConfig
