"""
Templates of handwritten digits from subsets
============================================

In template matching (Maire, Friel & Alquier 2019, section 6) an image of digit c is a template, a sum of Gaussian bumps
on a grid, plus noise: y = B θ(c) + ε. Metropolis on all images and on informed subsets of a hundred images runs for the
same processor time from blank templates.
"""

# %%
# The images are scikit-learn's 8 × 8 digits. Each image is also shifted by one pixel in eight directions. A row of the
# likelihood is one image. The model is a target with ``observations``, which is all that a sub-sampling step needs.

import time
import warnings

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import ppl_backends as pb
from ppl_backends.errors import SamplerWarning
from ppl_backends.targets import Observations

warnings.simplefilter("ignore", SamplerWarning)
DIGITS, NOISE, PRIOR, SUBSET, SECONDS = 5, 0.5, 1.0, 100, 12.0
digits = load_digits(n_class=DIGITS)
shifts = [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1)]
images = np.concatenate([np.roll(digits.images / 16, s, axis=(1, 2)) for s in shifts]).reshape(-1, 64)
labels = np.tile(digits.target, len(shifts))
pixel = np.stack(np.meshgrid(np.arange(8), np.arange(8), indexing="ij"), -1).reshape(-1, 2)
centre = np.stack(np.meshgrid(np.arange(0.5, 8, 1.5), np.arange(0.5, 8, 1.5), indexing="ij"), -1).reshape(-1, 2)
bumps = np.exp(-0.5 * ((pixel[:, None] - centre) ** 2).sum(axis=-1) / 1.0**2)  # (64, 25)
DIM = DIGITS * bumps.shape[1]


class Images(Observations):
    """Log likelihoods of images, and the other parts of the log density."""

    n = len(images)

    def log_likelihood(self, x, index=None):
        """Return log likelihoods ``(points, images)``."""
        index = slice(None) if index is None else index
        templates = x.reshape(len(x), DIGITS, -1) @ bumps.T
        return -0.5 * ((images[index] - templates[:, labels[index]]) ** 2).sum(axis=2) / NOISE**2

    def sum(self, x, index=None, weights=None, gradient=False):
        """Return weighted sums ``(points,)``, and their gradients ``(points, dim)``."""
        index = np.arange(self.n) if index is None else index
        weights = np.ones(len(index)) if weights is None else weights
        total = self.log_likelihood(x, index) @ weights
        if not gradient:
            return total
        slopes = np.zeros((len(x), DIGITS, bumps.shape[1]))
        for k, templates in enumerate(x.reshape(len(x), DIGITS, -1) @ bumps.T):
            residual = weights[:, None] * (images[index] - templates[labels[index]])
            for c in range(DIGITS):
                slopes[k, c] = residual[labels[index] == c].sum(axis=0) @ bumps / NOISE**2
        return total, slopes.reshape(len(x), DIM)

    def log_prior_and_potentials(self, x, gradient=False):
        """Return the log prior."""
        value = -0.5 * (x**2).sum(axis=1) / PRIOR**2
        return (value, -x / PRIOR**2) if gradient else value


class Templates(pb.FunctionTarget):
    """The posterior of the templates."""

    def __init__(self):
        self._images = Images()
        super().__init__(
            DIM, lambda x: self._images.sum(x, gradient=True), lambda x: self._images.log_prior_and_potentials(x, True)
        )

    def log_density(self, x):
        """Return the log density without gradients, which a random walk does not need."""
        return self._images.sum(x) + self._images.log_prior_and_potentials(x)

    @property
    def observations(self):
        """Return the images."""
        return self._images


# %%
# No approximation is fitted beforehand. Proposals have the shape of the prior, and the summary statistic of an image is its
# projection on the bumps, in the columns of its digit.

target = Templates()
rough = pb.GaussianApproximation(np.zeros(DIM), (PRIOR / 300) ** 2 * np.eye(DIM))
summary = np.zeros((len(images), DIGITS, bumps.shape[1]))
summary[np.arange(len(images)), labels] = images @ bumps
step = pb.steps.InformedSubsampling(
    subset=SUBSET, summary=summary.reshape(len(images), -1), correction=None, spread=20.0, swaps=20, approximation=rough
)


def trace(algorithm, seconds, seed=0):
    """Return states of a chain from blank templates at processor times up to ``seconds``."""
    rng, states = np.random.default_rng(seed), []
    state, clock = algorithm.start(np.zeros(DIM), rng), time.process_time()
    while (now := time.process_time() - clock) < seconds:
        states.append((now, np.ravel(state.x)))
        state, _ = algorithm.step(state, rng, True)
    return states


runs = {
    "all images": trace(pb.steps.RandomWalk(approximation=rough).bind(target), SECONDS),
    "informed subsets": trace(step.bind(target), SECONDS),
}
for name, states in runs.items():
    log_density = target.log_density(states[-1][1][None])[0]
    print(f"{name}: {len(states)} steps in {SECONDS:.0f} processor seconds, log density {log_density:.0f}")

# %%
# In the same processor time the chain on subsets takes many more steps. Its templates show shapes when those of the
# chain on all images are still nearly blank.

figure, axes = plt.subplots(2 * 2, DIGITS, figsize=(6.5, 6.2))
row = 0
for name, states in runs.items():
    for share in (0.25, 1.0):
        x = [state for now, state in states if now <= share * SECONDS][-1].reshape(DIGITS, -1) @ bumps.T
        for c in range(DIGITS):
            axes[row, c].imshow(x[c].reshape(8, 8), cmap="gray_r", vmin=0, vmax=1, interpolation="nearest")
            axes[row, c].set(xticks=[], yticks=[])
        axes[row, 0].set_ylabel(f"{name}\n{share * SECONDS:.0f} CPU s", fontsize=8)
        row += 1
figure.tight_layout()
plt.show()
