"""Why tests are skipped. Reasons for tolerances are beside them."""

TORCH = "PyTorch is optional, and test.sh runs the tests that do not need it before it installs it"
TRANSFORMERS = "transformers is optional: only falcon_fwa.models and falcon_fwa.enable_fla need it"
FLA = "flash-linear-attention is optional, and its functions are what is compared with here"
TRITON = "Triton is optional, and its interpreter runs the kernels that are compared here"
ACCELERATE = "transformers' Trainer needs accelerate, which is optional"
