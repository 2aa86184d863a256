"""The analysis `patch_estimates`: all effects of patching, estimated by gradients."""
