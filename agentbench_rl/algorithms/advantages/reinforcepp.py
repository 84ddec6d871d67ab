"""G_t = r_t + gamma * G_{t+1} over policy tokens; A = whitened G over all tokens of the batch. No critic, no groups.

r: the score on the last token, minus beta * k1 of every token where `reward.kl_coefficient` is set. `granularity`
`row`: the return ends with the response, whose row score it is; `token`: it goes on to the end of the episode.
Source: REINFORCE++ (arXiv 2501.03262, section 3).
"""

from __future__ import annotations

import numpy as np

from agentbench_rl.algorithms.batch import Batch, Credit
from agentbench_rl.algorithms.recurrence import reverse_recurrence
from agentbench_rl.algorithms.token_rows import Part, row_rewards, token_rows, turn_rewards
from agentbench_rl.config.advantage import Reinforcepp


def reinforcepp(batch: Batch, settings: Reinforcepp) -> Credit:
    """Whitened returns per token [S]. Diagnostics: responses without a token, rewards that no token carries."""
    layout = token_rows(batch)
    by_row = settings.granularity == "row"
    rewards = (row_rewards if by_row else turn_rewards)(batch, layout)

    def credit(part: Part) -> tuple[np.ndarray]:
        lengths = part.length if by_row else part.episode_length
        return (reverse_recurrence(rewards.of_tokens(part), lengths, settings.gamma),)

    (advantages,) = layout.credits(batch, credit, outputs=1, whiten=True)
    return Credit(token_advantages=advantages, diagnostics=rewards.diagnostics)
