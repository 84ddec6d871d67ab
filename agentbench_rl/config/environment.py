"""Settings of the environments: a union by `name`, each with its own task source and what every environment has."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from agentbench_rl.config.settings import Positive, Seed, Settings
from agentbench_rl.config.sources import CodeName, source_hash

TASK_TYPES = (
    "look_at_obj_in_light",
    "pick_and_place_simple",
    "pick_clean_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_two_obj_and_place",
)

#: Kinds of faults in programs, which are also the task types of code repair.
FAULT_KINDS = (
    "comparison",
    "operator",
    "boolean",
    "negated_condition",
    "dropped_condition",
    "off_by_one",
    "constant",
    "wrong_default",
    "swapped_arguments",
    "wrong_variable",
    "wrong_function",
    "dropped_return",
    "dropped_statement",
    "dropped_branch",
    "slice",
)


class PromptConfig(Settings):
    """How observations become chat turns.

    `{observation}`, `{admissible}`, and in `window` also `{goal}` and `{history}` are filled in. protocol_prefix: text
    that responses begin with whatever they decide, such as `<think>`; `boundary_entropy` is that of the first token
    after it.
    """

    system: str | None = None
    first: str = "{observation}"
    next: str = "{observation}"
    window: str = "{goal}\n{history}\n{observation}"
    action_format: Literal["plain", "text", "tags"] = "plain"
    protocol_prefix: str = ""


class GeneratorConfig(Settings):
    """Sizes of generated households; ranges are inclusive."""

    seed: Seed = 0
    receptacles: tuple[Positive, Positive] = (6, 9)
    objects: tuple[Positive, Positive] = (6, 12)
    floor_plans: Positive = 60
    task_types: tuple[str, ...] = TASK_TYPES

    @model_validator(mode="after")
    def _ranges(self) -> GeneratorConfig:
        for name in ("receptacles", "objects"):
            low, high = getattr(self, name)
            if low > high:
                raise ValueError(f"generator.{name}: {low} is larger than {high}")
        unknown = sorted(set(self.task_types) - set(TASK_TYPES))
        if unknown:
            raise ValueError(f"generator.task_types: unknown {unknown}; known are {list(TASK_TYPES)}")
        return self


class _Environment(Settings):
    """What every environment has: its data (`null`: the generator's tasks), the limits of an episode, its prompts."""

    #: Names of the splits, and the expert that knows the way to the goal of every task.
    splits: ClassVar[tuple[str, ...]] = ("train", "validation", "test")
    expert: ClassVar[str] = "scripted"

    data: Path | None = None
    max_turns: Positive = 30
    max_invalid_turns: Positive = 5
    prompt: PromptConfig = PromptConfig()

    def task_source(self) -> dict[str, Any]:
        """What decides which tasks there are and how they play, the data's path aside: plain JSON values."""
        return self.model_dump(mode="json", exclude={"data", "max_turns", "max_invalid_turns", "prompt"})

    def rules(self) -> dict[str, Any]:
        """What decides how a given task plays: plain JSON values."""
        return {key: value for key, value in self.task_source().items() if key != "generator"}


class AlfworldEnvironment(_Environment):
    """Households described in words."""

    splits: ClassVar[tuple[str, ...]] = ("train", "valid_seen", "valid_unseen")
    expert: ClassVar[str] = "walkthrough"

    name: Literal["alfworld"]
    engine: Literal["native", "textworld"] = "native"
    generator: GeneratorConfig = GeneratorConfig()


class ShopGeneratorConfig(Settings):
    """Size of a generated catalogue: products, their kinds, attributes and options of each, values of an option."""

    seed: Seed = 0
    products: Annotated[int, Field(ge=1, le=8000)] = 400
    kinds: Annotated[int, Field(ge=1, le=16)] = 16
    attributes: tuple[Positive, Positive] = (2, 3)
    options: Annotated[int, Field(ge=0, le=2)] = 2
    option_values: tuple[Positive, Positive] = (2, 4)

    @model_validator(mode="after")
    def _ranges(self) -> ShopGeneratorConfig:
        for name, most in (("attributes", 5), ("option_values", 10)):
            low, high = getattr(self, name)
            if not low <= high <= most:
                raise ValueError(f"generator.{name}: [{low}, {high}] is no range up to {most}")
        return self


class WebshopEnvironment(_Environment):
    """A web shop: search, look at products, choose options, buy.

    goals: of the products at `data`, the synthetic ones or those that people wrote. page_size: products on a page of
    results (10 in WebShop; fewer suit a short context).
    """

    expert: ClassVar[str] = "oracle"

    name: Literal["webshop"]
    goals: Literal["synthetic", "human"] = "synthetic"
    page_size: Positive = 10
    generator: ShopGeneratorConfig = ShopGeneratorConfig()

    @model_validator(mode="after")
    def _human_goals_are_data(self) -> WebshopEnvironment:
        if self.goals == "human" and self.data is None:
            raise ValueError("goals: people wrote them for the official products; set data to where these are")
        return self


class MathGenerator(Settings):
    """Generated problems: chains such as `4 + 13 - 2 =` of so many terms and digits; ranges are inclusive.

    reasoning_gym: datasets of that library, by name with their settings, in place of the chains.
    """

    seed: Seed = 0
    operators: Annotated[tuple[Literal["+", "-", "*"], ...], Field(min_length=1)] = ("+", "-")
    terms: tuple[Annotated[int, Field(ge=2, le=12)], Annotated[int, Field(ge=2, le=12)]] = (2, 3)
    digits: tuple[Annotated[int, Field(ge=1, le=9)], Annotated[int, Field(ge=1, le=9)]] = (1, 1)
    brackets: bool = False
    reasoning_gym: dict[str, dict[str, Any]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _ranges(self) -> MathGenerator:
        for name in ("terms", "digits"):
            low, high = getattr(self, name)
            if low > high:
                raise ValueError(f"generator.{name}: {low} is larger than {high}")
        return self


class MathEnvironment(_Environment):
    r"""Mathematical problems, answered at once or after some steps with a calculator.

    benchmark: which problems of the directory `data`. answer_format: `plain`, the answer is all that is said (after
    `answer: ` with the calculator), or `boxed`, it stands in `\boxed{}` in a text.
    """

    name: Literal["math"]
    benchmark: Literal["gsm8k", "math500", "svamp", "amc23"] = "gsm8k"
    answer_format: Literal["plain", "boxed"] = "plain"
    calculator: bool = False
    generator: MathGenerator = MathGenerator()


class SearchGenerator(Settings):
    """Made-up worlds of each split, their size, and the numbers of hops of the questions, asked in turn.

    worlds: worlds per split, over which the questions are dealt. Their facts differ, so that a policy that trains in
    many of them gains by reading pages, not by remembering them.
    """

    seed: Seed = 0
    worlds: Annotated[int, Field(ge=1, le=1000)] = 1
    entities: Annotated[int, Field(ge=20, le=3000)] = 1000
    hops: Annotated[tuple[Annotated[int, Field(ge=1, le=4)], ...], Field(min_length=1)] = (1, 2, 3, 4)


class SearchEnvironment(_Environment):
    """Questions answered by searching a corpus of passages.

    top_k: passages per search. passage_characters: of a passage's text, how much is shown. reward: of an answer,
    exact match or F1; success is always exact match.
    """

    name: Literal["search"]
    top_k: Positive = 3
    passage_characters: Positive = 1000
    reward: Literal["em", "f1"] = "em"
    generator: SearchGenerator = SearchGenerator()


class CodeLimits(Settings):
    """Limits of what an agent's code may use when tests run; at a limit a test fails.

    test_seconds: CPU seconds per test. run_seconds: wall time of a whole run. memory_mb: per process.
    output_kb: printed by one test, and of all results of a run. observation_characters: of one answer to the agent.
    """

    test_seconds: Positive = 2
    run_seconds: Positive = 60
    memory_mb: Positive = 512
    processes: Positive = 32
    output_kb: Positive = 1024
    observation_characters: Positive = 8000


class CodeGenerator(Settings):
    """Which faults are put into the libraries."""

    seed: Seed = 0
    kinds: tuple[str, ...] = FAULT_KINDS

    @model_validator(mode="after")
    def _known(self) -> CodeGenerator:
        unknown = sorted(set(self.kinds) - set(FAULT_KINDS))
        if unknown or not self.kinds:
            raise ValueError(f"generator.kinds: unknown {unknown}, or none; known are {list(FAULT_KINDS)}")
        return self


class DockerConfig(Settings):
    """Instances in containers; `{instance}` of `image` is the instance's id in lower case, `__` written `_1776_`.

    Limits: of memory in MB, of processes, and the seconds that a test run may take.
    """

    image: str = "swebench/sweb.eval.x86_64.{instance}:latest"
    memory_mb: Positive = 8192
    processes: Positive = 512
    run_seconds: Positive = 1800


class CodeEnvironment(_Environment):
    """A program with a failing behaviour, repaired by tool calls in a sandbox.

    data: null for faults in the libraries that ship; a directory of unpacked source distributions for faults in those;
    a `.jsonl` file of instances in the columns of SWE-bench. isolation: of what the agent's code does on this machine.
    """

    name: Literal["code"]
    isolation: Literal["bubblewrap", "none"] = "bubblewrap"
    limits: CodeLimits = CodeLimits()
    generator: CodeGenerator = CodeGenerator()
    docker: DockerConfig = DockerConfig()


class SeedConfig(Settings):
    """Which of the endless seeded tasks there are."""

    seed: Seed = 0


class GemEnvironment(_Environment):
    """A game of the package gem-llm by its id; `options` go to its constructor."""

    name: Literal["gem"]
    game: str = "game:GuessTheNumber-v0-easy"
    options: dict[str, Any] = Field(default_factory=dict)
    generator: SeedConfig = SeedConfig()


class TextworldEnvironment(_Environment):
    """Games of `tw-make` in the directory `data`."""

    name: Literal["textworld"]

    @model_validator(mode="after")
    def _has_data(self) -> TextworldEnvironment:
        if self.data is None:
            raise ValueError("data: name the directory of the games that tw-make made")
        return self


class CustomEnvironment(_Environment):
    """An environment of a user: `factory`, `module:name`, is called with `options` and makes a TextGame or a Suite.

    Of a Suite, `data` tells where its tasks come from, when that is not code: it is passed as the option `data`.
    forkable: false where an action has effects that no snapshot takes back; methods that fork are refused then.
    """

    name: Literal["custom"]
    forkable: bool = True
    factory: CodeName
    options: dict[str, Any] = Field(default_factory=dict)
    generator: SeedConfig = SeedConfig()

    def task_source(self) -> dict[str, Any]:
        """Also the hash of the factory's source file: results of other code are out of date."""
        return super().task_source() | {"code": source_hash(self.factory.partition(":")[0])}


EnvironmentConfig = Annotated[
    AlfworldEnvironment
    | WebshopEnvironment
    | MathEnvironment
    | SearchEnvironment
    | CodeEnvironment
    | GemEnvironment
    | TextworldEnvironment
    | CustomEnvironment,
    Field(discriminator="name"),
]
