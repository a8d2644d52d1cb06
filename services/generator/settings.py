"""All settings of the generator, each declared once; flags, environment, help and checks come from here.

Read by `__main__` and handed to the engine process as JSON. Flags keep the names that users of vLLM know.
"""

import re
from typing import Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from shared.settings.base import ModelSettings, RepeatedStr, settings_config

ADAPTER_NAME = re.compile(r"(?=.{1,128}\Z)[A-Za-z0-9][A-Za-z0-9._:-]*(?:/[A-Za-z0-9_:-][A-Za-z0-9._:-]*)*")
ADAPTER_NAME_RULE = "up to 128 of A-Z a-z 0-9 . _ - / :, where no part between slashes is empty or begins with a dot"
"""What an adapter may be called: its name may be a folder below a root, or part of an address, and both are made shorter by
whoever sees `..` or `//` in them."""

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
LORA_TARGETS = (*PROJECTIONS, "embed_tokens", "lm_head")
"""Modules that adapters may change, by the last part of their names: those of layers, and all."""

ADAPTER_PATHS = frozenset({"/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/pin_lora_adapter"})
"""Calls that change which adapters there are."""

ADMIN_PATHS = frozenset({"/reset_prefix_cache"}) | ADAPTER_PATHS
"""Calls that change the server."""

IMAGE_BODY_BYTES = 64 * 2**20
"""Largest accepted body unless given, where the model takes images."""


class GeneratorSettings(ModelSettings):
    """Where to serve, which model, and how much of the machine it may take."""

    model_config = settings_config("generator")

    port: int = Field(8001, ge=0, le=65535, description="TCP port to listen on.")
    max_model_len: int | None = Field(
        None, ge=1, description="Longest sequence in tokens, prompt and output; the model's own context unless given."
    )
    max_num_seqs: int | None = Field(
        None,
        ge=1,
        le=4096,
        description="Sequences that run at once; more wait. 32 on a CPU and 256 on a GPU unless given.",
    )
    max_num_batched_tokens: int | None = Field(
        None,
        ge=16,
        description="Tokens in one step; a long prompt is cut into chunks of at most this size. More is faster for long "
        "prompts and slower for those who wait for the step to end. 512 on a CPU and 8192 on a GPU unless given.",
    )
    encoder_cache_size: int | None = Field(
        None,
        ge=1,
        description="Rows of images that are kept for further requests, one row for each placeholder token; those of one request "
        "must fit in together. Enough for a full context, and 4096 at least, unless given.",
    )
    max_num_encoder_tokens: int | None = Field(
        None,
        ge=1,
        description="Rows of images that are encoded in one step, but for an image that has more. Others wait meanwhile, so less "
        "is smoother for them. --max-num-batched-tokens unless given.",
    )
    max_queued_requests: int = Field(
        512, ge=0, description="Requests that may wait beyond those running; one more is answered 429."
    )
    max_engine_restarts: int = Field(
        5,
        ge=0,
        description="Times in a row that a dead engine is started again, after 1, 2, 4, ... seconds; then /health is 503. "
        "A minute of service starts the count anew.",
    )
    enable_prefix_caching: bool = Field(
        True, description="Let requests that begin with the same tokens share KV; switch off only to measure."
    )
    generation_config: Literal["auto", "vllm"] = Field(
        "auto",
        description="Where sampling defaults come from: auto takes those in the model's generation_config.json, vllm takes "
        "temperature 1 and no filters whatever the model says. A request's own fields always win.",
    )
    ignore_unknown_fields: bool = Field(
        False,
        description="Drop fields of a request that this API does not know, instead of answering 400; for clients that send "
        "fields of other servers. Known fields that are not supported are refused all the same.",
    )
    admin_api_key: SecretStr | None = Field(
        None, description="Bearer token for calls that change the server; without it those calls are closed."
    )
    max_body_bytes: int = Field(
        8 * 2**20,
        ge=1024,
        description="Largest accepted request body in bytes; a larger one is answered 413. 64 MiB unless given where the model "
        "takes images.",
    )
    limit_images_per_prompt: int = Field(5, ge=0, description="Images in one prompt; one more is answered 400.")
    max_image_bytes: int = Field(
        20 * 2**20, ge=1, description="Largest accepted image file in bytes, as it is before base64."
    )
    max_image_pixels: int = Field(
        40_000_000,
        ge=1,
        le=2**27,
        description="Largest accepted image in pixels, width times height, as its header has them; decoding takes up to 20 bytes "
        "for each.",
    )
    image_cache_bytes: int = Field(
        64 * 2**20,
        ge=0,
        description="Bytes of images kept as the model sees them, so that a file that comes again, as with each turn of a chat, "
        "is not decoded again; 0 for none.",
    )
    lora: RepeatedStr = Field(
        [],
        description="An adapter to serve, as NAME=FOLDER; may be given several times. Requests name it as their model.",
    )
    max_loras: int = Field(
        16, ge=1, le=4096, description="Adapters on the device at one time; further ones take turns with them."
    )
    max_lora_rank: int = Field(
        64, ge=1, le=512, description="Largest rank of an adapter; memory for it is taken in every slot."
    )
    lora_targets: RepeatedStr = Field(
        list(PROJECTIONS),
        description="A module that adapters may change; may be given several times, instead of the seven projections. Memory for "
        "it is taken in every slot, which for embed_tokens and lm_head grows with the vocabulary.",
    )
    lora_max_wait: float = Field(
        5.0,
        gt=0,
        description="Seconds that a request waits for a slot before the rows of another adapter give way, and that an "
        "adapter keeps a slot at least while others wait.",
    )
    max_cpu_loras: int = Field(
        256,
        ge=1,
        description="Adapters in host memory at one time, at least --max-loras; further ones are read when needed.",
    )
    lora_root: RepeatedStr = Field(
        [],
        description="A folder below which every adapter is served under its path from there, and read when a request names it; "
        "may be given several times.",
    )
    lora_scan_interval: float = Field(
        10.0, gt=0, description="Seconds between two looks for new folders below --lora-root."
    )
    lora_eviction: Literal["lru", "lfu"] = Field(
        "lru",
        description="Which adapter leaves a slot or host memory for another: that used longest ago, or that used least.",
    )
    lora_preload: RepeatedStr = Field(
        [], description="An adapter below a --lora-root to read at the start; may be given several times."
    )
    allow_runtime_lora: bool = Field(
        False,
        description="Let the holder of --admin-api-key load, unload and pin adapters while the service runs, from folders below "
        "--lora-root.",
    )
    strict_adapter_base: bool = Field(
        False, description="Refuse adapters that name another base model, instead of a warning."
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="Where the model runs; auto takes a GPU where torch finds one."
    )
    load_format: Literal["auto", "dummy"] = Field(
        "auto", description="auto reads the folder's weights; dummy makes random ones, to measure speed without them."
    )
    gpu_memory_utilization: float = Field(
        0.9,
        gt=0,
        le=1,
        description="Share of the GPU's memory that this service may use; what is left over is KV cache.",
    )
    enforce_eager: bool = Field(
        False,
        description="On a GPU, launch every kernel of every step instead of replaying CUDA graphs; to find faults.",
    )
    attention_backend: Literal["auto", "reference", "triton"] = Field(
        "auto",
        description="Code that computes attention; auto takes triton on a GPU and reference, plain torch, on a CPU.",
    )
    kernel_backend: Literal["auto", "reference", "triton"] = Field(
        "auto", description="Code that computes norms, activations and adapters; auto likewise."
    )
    block_size: int = Field(16, ge=1, le=256, description="Token positions in a KV block.")
    num_gpu_blocks_override: int | None = Field(None, ge=1, description="Number of KV blocks, instead of what fits.")
    kv_cache_memory_bytes: int = Field(
        2**30, ge=2**20, description="Memory for the KV cache in bytes, on a CPU; a GPU is measured."
    )

    @field_validator("lora")
    @classmethod
    def _check_lora(cls, values: list[str]) -> list[str]:
        names = [value.partition("=")[0] for value in values]
        for value, name in zip(values, names, strict=True):
            if not ADAPTER_NAME.fullmatch(name) or not value.partition("=")[2]:
                raise ValueError(f"{value!r} is not NAME=FOLDER; a name has {ADAPTER_NAME_RULE}")
        if len(set(names)) < len(names):
            raise ValueError("the same name is given twice")
        return values

    @field_validator("lora_targets")
    @classmethod
    def _check_lora_targets(cls, values: list[str]) -> list[str]:
        if not values or not set(values) <= set(LORA_TARGETS):
            raise ValueError(f"each must be one of {', '.join(LORA_TARGETS)}")
        return values

    @model_validator(mode="after")
    def _check_adapters(self) -> Self:
        if self.has_bank and self.max_cpu_loras < self.max_loras:
            raise ValueError(f"--max-cpu-loras {self.max_cpu_loras} is less than --max-loras {self.max_loras}")
        if self.lora_preload and not self.lora_root:
            raise ValueError("--lora-preload needs a --lora-root")
        if self.allow_runtime_lora and not (self.has_bank and self.admin_api_key):
            raise ValueError("--allow-runtime-lora needs an --admin-api-key, and a --lora-root to load from")
        return self

    @property
    def has_bank(self) -> bool:
        """Whether there are adapters, or may be."""
        return bool(self.lora or self.lora_root)

    @property
    def adapters(self) -> dict[str, str]:
        """Folder of each adapter by its name."""
        return {name: folder for name, _, folder in (value.partition("=") for value in self.lora)}

    def for_images(self) -> Self:
        """The same for a model that takes images: larger bodies, unless their limit was given."""
        is_given = "max_body_bytes" in self.model_fields_set
        return self if is_given else self.model_copy(update={"max_body_bytes": IMAGE_BODY_BYTES})

    def bearer_keys(self, path: str) -> tuple[SecretStr, ...] | None:
        """Calls that change the server take the admin key only; without one they are closed."""
        if path in ADAPTER_PATHS and not self.allow_runtime_lora:
            return super().bearer_keys(path)  # it says itself that it is closed
        if path in ADMIN_PATHS:
            return () if self.admin_api_key is None else (self.admin_api_key,)
        return super().bearer_keys(path)

    def for_engine(self) -> str:
        """Everything as one JSON document for the engine process; the keys stay here."""
        return self.model_dump_json(exclude={"api_key", "admin_api_key"})
