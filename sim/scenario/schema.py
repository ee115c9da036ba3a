"""The scenario as a frozen object, its YAML form and its JSON schema."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, cast

from annotated_types import MaxLen
from pydantic import ValidationError

from ..fields import Section
from ..workload.spec import WorkloadSpec
from .assign import assign
from .cluster import Cluster
from .colocated import Colocated
from .device import Device
from .errors import Where, one_line
from .price import Price
from .sections import (
    ComputeSplit,
    Kernels,
    KVCacheSection,
    Node,
    Parallelism,
    QuantizationSection,
    SchedulerSection,
    Simulation,
    Slo,
    Speculative,
)  # fmt: skip

DEFAULT_ENGINE = "vllm-0.24"

PATH_LEAVES = (
    "device", "device.base", "model", "engine", "speculative.draft_model", "workload.trace.path",
    "workload.input_tokens.path", "workload.output_tokens.path", "workload.expert_routing.path",
    "price.table",
)  # fmt: skip
"""Leaves that may name a file; in a scenario file they are relative to it."""


class Scenario(Section):
    """The whole question: what serves, what is asked of it, and what counts as good.

    Attributes
    ----------
    schema_version : version of this file format
    name : shown above results
    device : id or path of a device, or ``{base: h100_sxm, hbm_bandwidth: x1.5}`` for one that does not exist
    model : id, Hugging Face name, or path of a ``config.json``
    engine : id or path of a serving engine version
    parallelism : how one replica is spread over GPUs
    node : the machine around the GPUs
    quantization : number formats of weights, activations and KV cache
    kernels : which kernels run
    scheduler : which requests compute how many tokens in a step
    kv_cache : the KV cache
    speculative : speculative decoding
    workload : what is asked of the engine
    slo : what counts as good
    cluster : several replicas behind a router
    colocated : a second model on the same device
    compute_split : compute units shared out between prefill and decode
    price : what a GPU costs
    simulation : how the run is carried out

    Examples
    --------
    >>> Scenario(device="h100_sxm", model="llama-3.1-8b").scheduler.max_num_seqs
    'auto'
    """

    schema_version: Literal[1] = 1
    name: Annotated[str, MaxLen(200)] = ""
    device: Device
    model: str
    engine: str = DEFAULT_ENGINE
    parallelism: Parallelism = Parallelism()
    node: Node = Node()
    quantization: QuantizationSection = QuantizationSection()
    kernels: Kernels = Kernels()
    scheduler: SchedulerSection = SchedulerSection()
    kv_cache: KVCacheSection = KVCacheSection()
    speculative: Speculative | None = None
    workload: WorkloadSpec | None = None
    slo: Slo | None = None
    cluster: Cluster = Cluster()
    colocated: Colocated | None = None
    compute_split: ComputeSplit | None = None
    price: Price = Price()
    simulation: Simulation = Simulation()

    def to_dict(self) -> dict[str, Any]:
        """Return the scenario as plain data, every default spelled out."""
        return self.model_dump(mode="json")

    def to_yaml(self, folder: str | os.PathLike[str] | None = None) -> str:
        """Return the scenario as a YAML file, every default spelled out.

        Parameters
        ----------
        folder : where the file will be written; relative paths are turned to start from there
        """
        import yaml

        data = self.to_dict()
        if folder is not None:
            start = folder
            move_paths(data, lambda path: os.path.relpath(path, start))
        return yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=110)

    def replace(self, **changes: object) -> Scenario:
        """Return a copy with these leaves changed, dots written as ``__`` (``scheduler__max_num_seqs=64``).

        Raises
        ------
        ScenarioError : unknown key or impossible value
        """
        data = self.to_dict()
        for key, value in changes.items():
            assign(data, key.split("__"), value, "replace")
        try:
            return Scenario.model_validate(data)
        except ValidationError as error:
            raise one_line(error, data, Scenario, Where("replace")) from None


def leaf(data: Mapping[str, Any], dotted: str) -> Any:
    """Return the value at a dotted path of plain data, or None."""
    inner: Any = data
    for key in dotted.split("."):
        if not isinstance(inner, Mapping):
            return None
        inner = cast("Mapping[str, Any]", inner).get(key)
    return inner


def move_paths(data: dict[str, Any], move: Callable[[str], str]) -> None:
    """Change in place every leaf that names a file that is there, or that can name nothing but a file."""
    for part in _parts(data):
        move_paths(part, move)
    tiers = leaf(data, "kv_cache.tiers")
    for tier in cast("list[Any]", tiers) if isinstance(tiers, list) else ():
        if isinstance(tier, dict):
            tier["kind"] = _moved_kind(cast("dict[str, Any]", tier).get("kind"), move)
    for dotted in PATH_LEAVES:
        value = leaf(data, dotted)
        if not isinstance(value, str):
            continue
        only_path = dotted.startswith(("workload.", "price."))
        moved = move(value)
        if not os.path.isabs(value) and (only_path or os.path.exists(moved) or os.path.isfile(value)):
            *parents, last = dotted.split(".")
            (leaf(data, ".".join(parents)) if parents else data)[last] = moved


def _parts(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what is part of a scenario by itself: groups of replicas with settings of their own, a second model."""
    replicas: object = leaf(data, "cluster.replicas")
    pools = [leaf(data, f"cluster.pools.{phase}") for phase in ("prefill", "decode")]
    parts = [
        *(cast("list[Any]", replicas) if isinstance(replicas, list) else []),
        *pools,
        leaf(data, "colocated"),
    ]
    return [part for part in parts if isinstance(part, dict)]


def _moved_kind(kind: Any, move: Callable[[str], str]) -> Any:
    """Return where a tier's file is from now on, if its kind names one."""
    if not isinstance(kind, str) or os.path.isabs(kind):
        return kind
    moved = move(kind)
    return moved if os.path.isfile(moved) or os.path.isfile(kind) else kind


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of a scenario file, with each key's meaning, for editors and other programs."""
    schema = Scenario.model_json_schema()
    _describe(schema)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "membound scenario"
    return schema


def _describe(section: dict[str, Any]) -> None:
    """Move the meaning of each key from a section's docstring to the key, in all sections inside."""
    for inner in section.values():
        for item in cast("list[object]", inner) if isinstance(inner, list) else [inner]:
            if isinstance(item, dict):
                _describe(cast("dict[str, Any]", item))
    text: object = section.get("description", "")
    if not isinstance(text, str):
        return
    summary, _, rest = text.partition("Attributes\n----------\n")
    if not rest:
        return
    section["description"] = summary.strip()
    attributes = rest.partition("\n\n")[0]
    for names, meaning in re.findall(r"^(\w[\w, ]*) : ((?:.|\n(?= ))*)", attributes, flags=re.MULTILINE):
        for name in names.split(", "):
            if name in section.get("properties", {}):
                known = section["properties"][name]
                hint = known.get("description")
                said = re.sub(r"\s+", " ", meaning).strip()
                known["description"] = f"{said} ({hint})" if hint else said
