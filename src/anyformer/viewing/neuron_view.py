"""Attention of one token in one head, channel by channel, as in bertviz's neuron view (arXiv 1906.05714).

score_j = sum_c q_c k_jc  (+ positional bias) ;  weight = softmax(score)      q scaled by 1 / sqrt(c)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from anyformer.drawing.figures import Drawing, one_line

TAPS = ("queries", "keys", "pattern")
ROW_INCHES, HIGHEST, WIDTH = 0.24, 24.0, 11.0


@dataclass(frozen=True, eq=False)
class Neurons:
    """Query, keys and weights of one token in one head."""

    query: Float[Tensor, " c"]
    """The query, scaled by 1 / sqrt(c)."""
    keys: Float[Tensor, "s c"]
    weights: Float[Tensor, " s"]

    @classmethod
    def of(cls, seen: Mapping[str, Sequence[Tensor]], head: int, token: int) -> "Neurons | None":
        """From the captured taps of a part; head and token count from 0. None if the part has no queries and keys."""
        if any(len(seen.get(tap, ())) != 1 for tap in TAPS):
            return None
        q, k, weights = (seen[tap][0][0].float().cpu() for tap in TAPS)
        group = head * k.shape[1] // q.shape[1]  # several heads may share one head of keys
        return cls(q[token, head], k[:, group], weights[head, token])

    @property
    def products(self) -> Float[Tensor, "s c"]:
        """q x k, channel by channel."""
        return self.query * self.keys

    @property
    def scores(self) -> Float[Tensor, " s"]:
        """q · k without positional bias: the sums of `products`."""
        return self.products.sum(-1)

    def drawing(self, token: str, tokens: Sequence[str]) -> Drawing:
        """A drawing with one row for each key token: query, key, products, score and weight."""
        names = list(map(one_line, tokens))

        def draw(figure: Figure) -> None:
            query = self.query.expand_as(self.keys)
            shown = {f"q: {one_line(token)}": query, "k": self.keys, "q × k": self.products}
            shown |= {"sum": self.scores[:, None], "softmax": self.weights[:, None]}
            panels = figure.subplots(1, len(shown), sharey=True, width_ratios=[4, 4, 4, 1, 1])
            for axes, (title, values) in zip(panels, shown.items(), strict=True):
                values = values[: len(names)]
                most = float(values.abs().max()) or 1.0
                low, colours = (0.0, "Blues") if title == "softmax" else (-most, "RdBu")
                axes.imshow(values.numpy(), cmap=colours, vmin=low, vmax=most, aspect="auto", interpolation="nearest")
                axes.set(title=title, xticks=[])
                for row, value in enumerate(values[:, 0].tolist() if values.shape[1] == 1 else ()):
                    ink = "white" if abs(value) > 0.6 * most else "black"
                    axes.text(0, row, f"{value:.2f}", ha="center", va="center", fontsize=7, color=ink)
            panels[0].set_yticks(range(len(names)), names)

        return Drawing(draw, (WIDTH, min(HIGHEST, ROW_INCHES * len(names) + 0.8)))
