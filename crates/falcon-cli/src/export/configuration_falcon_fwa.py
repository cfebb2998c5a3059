"""What transformers load with trust_remote_code=True. The code is in the package falcon-fwa."""

from falcon_fwa import models


class FalconFwaConfig(models.FalconFwaConfig):
    """The configuration of a Falcon model."""
