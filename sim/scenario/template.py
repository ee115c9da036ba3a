"""The commented scenario that ``scenario init`` writes."""

TEMPLATE = """\
# yaml-language-server: $schema=scenario.schema.json
# Any leaf can be changed on the command line: --set scheduler.max_num_seqs=64
name: chat on one H100
device: h100_sxm              # an id (membound devices), a path, or {base: h100_sxm, hbm_bandwidth: x1.5}
model: llama-3.1-8b           # an id (membound models), a Hugging Face name, or the path of a config.json
engine: vllm-0.24             # an id (membound engines), or a path
parallelism: {tensor_parallel_size: 1}
quantization: {weights: auto, activations: auto, kv_cache: auto}    # auto: as the checkpoint has it
scheduler:                    # auto: what this engine version takes on this device
  name: auto
  max_num_seqs: auto
  max_num_batched_tokens: auto
  enable_chunked_prefill: auto
kv_cache:
  allocator: paged
  gpu_memory_utilization: auto
  enable_prefix_caching: auto
  max_model_len: auto
workload:
  # Replay a file instead:    trace: {path: azure_conv.csv.gz, time_scale: 1.0, limit: 5000}
  arrivals: {kind: poisson, rate_per_s: 8}        # poisson | gamma | on_off | constant | closed_loop
  # lengths: a number, or fixed | lognormal | uniform | quantiles | empirical
  input_tokens: {kind: lognormal, p50: 900, p99: 5k, max: 8k}
  output_tokens: {kind: lognormal, p50: 150, sigma: 0.75, max: 2k}
  requests: 1000
# Several replicas behind a router; or groups, each with what it has of its own over the above:
#   cluster: {router: prefix_affinity, replicas: [{count: 2}, {count: 4, device: l40s, scheduler: {max_num_seqs: 64}}]}
# Replicas that fail, drawn or given: failures: {mtbf: 1h, mttr: 5min}, {at: [{replica: 0, after: 120s, lasts: 60s}]}
cluster: {replicas: 1, router: least_outstanding}
slo: {attainment: 0.99, classes: {default: {ttft_s: 500ms, tpot_s: 50ms}}}
simulation: {seed: 0}
"""
