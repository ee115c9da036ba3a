# %% [markdown]
# # What would change it?
# More bandwidth, 8-bit weights, a bigger batch: on the same requests and the same random numbers.

# %%
import tempfile

import membound as mb

chat = mb.Scenario.model_validate(
    {
        "name": "chat",
        "device": "h100_sxm",
        "model": "llama-3.1-8b",
        "workload": {
            "arrivals": {"kind": "poisson", "rate_per_s": 10},
            "input_tokens": 900,
            "output_tokens": 120,
            "requests": 120,
        },
    }
)
levers = mb.compare(
    {
        "as it is": chat,
        "fp8 weights": chat.replace(quantization__weights="fp8"),
        "fp8 KV cache": chat.replace(quantization__kv_cache="fp8"),
        "50 % more HBM bandwidth": chat.replace(device={"base": "h100_sxm", "hbm_bandwidth": "x1.5"}),
    },
    jobs=1,
)
levers

# %%
{point.label: point.change["latency.tpot_s.mean"] for point in levers.points[1:]}

# %% [markdown]
# Where does a larger batch stop to help? The roofline says it without a load.

# %%
roof = mb.roofline(chat, requests=60)
{point.batch: round(point.tokens_per_s) for point in roof.curve.points}

# %%
from membound.app.charts.roofline import batch_curve

batch_curve(roof.to_dict()["curve"])

# %% [markdown]
# A study varies leaves over a grid, keeps every run, and goes on where it stopped.

# %%
rates = mb.study(chat, over={"workload.arrivals.rate_per_s": [4, 16, 48]})
found = mb.sweep(rates, tempfile.mkdtemp(), jobs=1)
found.to_pandas()[["workload.arrivals.rate_per_s", "latency.ttft_s.p99", "latency.tpot_s.p99"]]

# %%
from membound.app.charts.load import load_curves, load_rows

load_curves(load_rows(found.to_dict()["points"]))
