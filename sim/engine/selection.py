"""What is kept of a prompt's KV once it is computed, as SnapKV does (Li et al., NeurIPS 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class PromptSelection:
    """A budget of entries of each prompt, per KV head and layer; the prompt's last tokens always stay.

    Attributes
    ----------
    window : last tokens of the prompt, whose queries vote and which stay themselves [tokens]
    share : of the prompt's entries that are kept; None: as many as ``most``
    most : entries that are kept; None: the share of them [tokens]
    """

    window: int
    share: Fraction | None = None
    most: int | None = None

    def kept(self, prompt: int) -> int:
        """Return the entries kept of a prompt of so many tokens [tokens].

        >>> PromptSelection(32, share=Fraction(1, 4)).kept(1001), PromptSelection(32, most=1024).kept(700)
        (251, 700)
        """
        budget = prompt if self.most is None else self.most
        if self.share is not None:
            budget = -(-prompt * self.share.numerator // self.share.denominator)
        return min(max(budget, self.window), prompt)
