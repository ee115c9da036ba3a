# %% [markdown]
# # My own GPU, my own model
# A GPU is one YAML file, a model is a `config.json`. What is known of a device, and how sure is it?

# %%
import membound as mb

h100 = mb.load_device("h100_sxm")
h100

# %% [markdown]
# A device that nobody sells: any value of a datasheet may be changed, and every answer says that it is a what-if.

# %%
wide = mb.load_device({"base": "h100_sxm", "hbm_bandwidth": "x2"})
wide.hbm_bandwidth / h100.hbm_bandwidth

# %% [markdown]
# Does a model fit, and how much room is left for the KV cache?

# %%
sized = mb.size(mb.Scenario(device="l40s", model="qwen3-14b"))
{name: sized.memory[name] for name in ("fits", "weights_bytes", "kv_pool_bytes", "kv_capacity_tokens")}

# %% [markdown]
# Timing a device and fitting it takes minutes and PyTorch (`pip install 'membound[calibrate]'`):
#
# ```python
# run = mb.calibrate("cuda", out="my-gpu", budget_s=120)
# run                       # every lane with its errors
# run.to_pandas()           # every parameter with its standard error
# ```
#
# Here is what such a fit found on an H100, from the device's file.

# %%
gemm = h100.fitted["gemm"]["vllm"]
{name: (each.value, each.stderr) for name, each in gemm.parameters.items()}
