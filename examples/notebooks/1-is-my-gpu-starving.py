# %% [markdown]
# # Is my GPU computing, or starving for data?
# One model on one GPU under a chat load: where does the time go, and what would a monitoring tool show?

# %%
import membound as mb

chat = mb.Scenario.model_validate(
    {
        "name": "chat",
        "device": "h100_sxm",
        "model": "llama-3.1-8b",
        "workload": {
            "arrivals": {"kind": "poisson", "rate_per_s": 6},
            "input_tokens": {"kind": "lognormal", "p50": 900, "sigma": 0.8, "min": 16, "max": 8000},
            "output_tokens": {"kind": "lognormal", "p50": 150, "sigma": 0.75, "min": 4, "max": 800},
            "requests": 300,
        },
        "slo": {"classes": {"default": {"ttft_s": "500ms", "tpot_s": "50ms"}}},
    }
)
result = mb.simulate(chat, keep_steps=True)
result

# %%
result.bottleneck()

# %% [markdown]
# `gpu_util` says that a kernel is running. It says nothing of what the kernel waits for.

# %%
seen = result.summary()["utilization"]
{name: round(seen[name], 3) for name in ("gpu_util", "dram_active", "tensor_active", "mbu", "mfu")}

# %% [markdown]
# The same as a picture (`pip install 'membound[app]'`).

# %%
from membound.app.charts import shares
from membound.sim.output import views

view = mb.view_of(result)
shares.shares_over_time(views.share_rows(view))

# %%
shares.monitors_over_time(views.monitor_rows(view))

# %% [markdown]
# Requests one by one, as a frame (`pip install 'membound[notebook]'`).

# %%
result.to_pandas()[["ttft_s", "tpot_s", "e2e_s"]].describe()
