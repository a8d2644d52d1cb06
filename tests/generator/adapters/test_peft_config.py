"""The configuration from anyone: whatever it holds, it is understood or refused by key, and nothing else happens."""

import json

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from peft import LoraConfig

from services.generator.adapters.peft_config import HARMLESS, NEUTRAL, USED, parse_peft_config, read_peft_config
from services.generator.core.adapters import AdapterDescription, AdapterReport, ModuleReport, describe
from shared.errors import InvalidRequestError

KNOWN = sorted({*NEUTRAL, *HARMLESS, *USED, *LoraConfig.__dataclass_fields__})
WORDS = st.sampled_from(
    ["q_proj", "model.layers.0.mlp.up_proj", "layers", "all-linear", "(", "[a", r"\1", "(?P<idx>x)", "{}", ""]
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | WORDS | st.text(max_size=5)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3), max_leaves=6
)
MODULES = ["model.layers.0.self_attn.q_proj", "model.layers.11.mlp.up_proj", "model.embed_tokens", "lm_head"]


class ConfigEditing(RuleBasedStateMachine):
    """A good configuration, changed key by key."""

    @initialize()
    def start(self):
        self.raw = json.loads(json.dumps({"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}))

    @rule(key=st.sampled_from(KNOWN) | st.text(max_size=8), value=VALUES)
    def set_key(self, key, value):
        self.raw[key] = value

    @rule(data=st.data())
    def remove_key(self, data):
        if self.raw:
            del self.raw[data.draw(st.sampled_from(sorted(self.raw)))]

    @invariant()
    def is_understood_or_refused_by_a_key(self):
        try:
            config = parse_peft_config(self.raw)
        except InvalidRequestError as error:
            key, message = error.param, str(error)
            assert key in self.raw or key.split(".")[0] in self.raw or key in ("peft_type", "target_modules")
            assert key in message
            return
        for key, value in self.raw.items():
            says_nothing = value is None or value is False or value in ("", [], {})
            assert says_nothing or key in {*NEUTRAL, *HARMLESS, *USED}
        for module in MODULES:
            assert isinstance(config.concerns(module), bool)
            assert config.rank(module) >= 1
            assert 0 < config.scale(module) < 1e39


ConfigEditing.TestCase.settings = settings(
    max_examples=100, stateful_step_count=8, deadline=None, suppress_health_check=list(HealthCheck)
)
TestConfigEditing = ConfigEditing.TestCase


def test_every_field_of_this_release_of_peft_is_taken_at_its_default(tmp_path):
    LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM").save_pretrained(tmp_path)
    assert read_peft_config(tmp_path).concerns("model.layers.0.self_attn.q_proj")


@pytest.mark.parametrize(
    "content", [b"[" * 200_000, b'{"r": ' + b"9" * 5000 + b"}", b'{"peft_type": "LORA"', b"\xed\xa0\x80"]
)
def test_hostile_json_is_refused(tmp_path, content):
    (tmp_path / "adapter_config.json").write_bytes(content)
    with pytest.raises(InvalidRequestError, match=r"adapter_config\.json: is not JSON"):
        read_peft_config(tmp_path)


def test_a_configuration_of_many_megabytes_is_not_parsed(tmp_path):
    (tmp_path / "adapter_config.json").write_bytes(b" " * (17 << 20))
    with pytest.raises(InvalidRequestError, match="is larger than"):
        read_peft_config(tmp_path)


@pytest.mark.parametrize("keys", [{"layers_to_transform": [0]}, {"layers_pattern": "layers"}])
def test_layers_beside_a_regular_expression_are_refused_as_by_peft(keys):
    raw = {"target_modules": ".*q_proj", **keys}
    with pytest.raises(ValueError, match=next(iter(keys))):
        LoraConfig(**raw)
    with pytest.raises(InvalidRequestError, match=next(iter(keys))):
        parse_peft_config({"peft_type": "LORA", **raw})


def test_a_description_survives_the_wire():
    report = AdapterReport((ModuleReport("lm_head", 4, 0.5),), 1024, (), ("a warning",))
    sent = describe("sql", "/adapters/sql", report)
    assert (sent.targets, sent.max_rank) == (("lm_head",), 4)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=AdapterDescription) == sent


@pytest.mark.parametrize(
    "expression",
    [
        *(r"(\w+\.?)+x", "(a|a)*", "(A|ab|b)+", "((a+))+", "(a?){50}", "(?:a*)+?", ".*" * 6),
        *(".?" * 21 + "!", "(.|..)" * 21, "((?#()a+)+", "(?x:(#)\n a+)+)"),
    ],
)
@pytest.mark.parametrize("key", ["target_modules", "exclude_modules", "rank_pattern", "modules_to_save"])
def test_an_expression_that_may_never_end_is_refused(key, expression):
    value = {expression: 4} if key == "rank_pattern" else expression
    with pytest.raises(InvalidRequestError, match="too long to match") as caught:
        parse_peft_config({"peft_type": "LORA", "target_modules": ["q_proj"], key: value})
    assert caught.value.param == key


@pytest.mark.parametrize(
    "expression",
    [
        r"(?:.*?(?:language|text).*?(?:self_attn|mlp).*?(?:q|k)_proj.*?)|(?:\bmodel\.layers\.[\d]{1,}\.(?:mlp)\.(?:up_proj))",
        r"^(?!.*visual).*(?:q_proj|k_proj).*$",
        r"model\.layers\.([0-9]|1[0-9])\.mlp\..*",
        r"[(a+)+]*\(a+\)+(a)+",
        r"(?:layers\.|blocks\.)+\d+\.(?:mlp|self_attn)\.(?:up|down|gate|q|k|v|o)_proj",
    ],
)
def test_expressions_that_trainers_write_are_taken(expression):
    assert parse_peft_config({"peft_type": "LORA", "target_modules": expression}).target_modules == expression


def test_many_expressions_may_not_take_long_together():
    patterns = {f"{index}.*.*x": 4 for index in range(1000)}
    with pytest.raises(InvalidRequestError, match=r"alpha_pattern: .* too long to match"):
        parse_peft_config({"peft_type": "LORA", "target_modules": ["q_proj"], "alpha_pattern": patterns})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("r", 10**400),
        ("rank_pattern", {"q_proj": 2**31}),
        ("lora_alpha", 1e-300),
        ("layers_pattern", "model|layers"),
    ],
)
def test_values_that_no_module_can_have_are_refused(key, value):
    raw = {"peft_type": "LORA", "target_modules": ["q_proj"], "layers_to_transform": [0], key: value}
    with pytest.raises(InvalidRequestError, match=key):
        parse_peft_config(raw)
