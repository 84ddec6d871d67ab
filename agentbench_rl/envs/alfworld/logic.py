"""The rules this engine knows: the actions, predicates and command templates of ALFWorld's released games."""

from __future__ import annotations

import re
from functools import lru_cache

from agentbench_rl.types import AgentRLError

#: Action name (PDDL, lower case) → command template (grammar).
TEMPLATES = {
    "gotolocation": "go to [{r.name | receptacleatlocation(r:receptacle, lend:location)}]",
    "openobject": "open {r}",
    "closeobject": "close {r}",
    "pickupobject": "take {o} from {r}",
    "putobject": "move {o} to {r}",
    "inventory": "inventory",
    "examinereceptacle": "examine {r}",
    "examineobject": "examine {o}",
    "toggleobject": "use {o}",
    "heatobject": "heat {o} with {r}",
    "cleanobject": "clean {o} with {r}",
    "coolobject": "cool {o} with {r}",
    "sliceobject": "slice {co} with {ko}",
    "look": "look",
    "help": "help",
}
#: Predicates that the rules read.
# fmt: off
PREDICATES = frozenset(
    {
        "atlocation", "receptacleatlocation", "objectatlocation", "openable", "opened",
        "inreceptacle", "isreceptacleobject", "inreceptacleobject", "receptacletype", "cancontain",
        "objecttype", "holds", "holdsany", "isclean", "cleanable", "ishot", "heatable", "iscool",
        "coolable", "pickupable", "toggleable", "istoggled", "sliceable", "issliced",
    }
)
# fmt: on
_TEMPLATE = re.compile(r'action\s+(\w+)\s*\{\s*template\s*::\s*"([^"]*)"')
_HELP = re.compile(r'action\s+help\s*\{[^}]*?feedback\s*::\s*"([^"]*)"')


def check_logic(domain: str, grammar: str, origin: str) -> None:
    """Raise AgentRLError unless domain and grammar are those of ALFWorld's released games."""
    difference = _difference(domain, grammar)
    if difference:
        raise AgentRLError(
            f"{origin}: not a game of ALFWorld's current release: {difference}. "
            "Use the games of json_2.1.2_tw-pddl.zip (commands 'move X to Y'), or generate games."
        )


def help_text(grammar: str) -> str:
    """What `help` answers: the grammar's text without leading white space, which TextWorld drops."""
    match = _HELP.search(grammar)
    if match is None:
        raise AgentRLError("The game's grammar has no text for 'help'; fetch the games again.")
    return match.group(1).lstrip()


@lru_cache(maxsize=64)
def _difference(domain: str, grammar: str) -> str:
    code = re.sub(r";[^\n]*", "", domain)
    actions = {name.lower() for name in re.findall(r"\(:action\s+(\S+)", code)}
    if actions != TEMPLATES.keys():
        return f"its domain's actions differ in {_names(actions ^ TEMPLATES.keys())}"
    declared = re.search(r"\(:predicates(.*?)\(:(?:functions|action)", code, re.DOTALL)
    predicates = {name.lower() for name in re.findall(r"\(\s*(\w+)", declared.group(1))} if declared else set()
    if not predicates >= PREDICATES:
        return f"its domain lacks the predicates {_names(PREDICATES - predicates)}"
    templates = {name.lower(): template for name, template in _TEMPLATE.findall(grammar)}
    for action, template in TEMPLATES.items():
        if templates.get(action) != template:
            return f"the command of {action} is {templates.get(action)!r}, not {template!r}"
    return "" if _HELP.search(grammar) else "its grammar has no text for 'help'"


def _names(names: set[str] | frozenset[str]) -> str:
    return ", ".join(sorted(names))
