"""Shapley values: axioms, agreement with exact enumeration, estimators, removal of players, texts."""

from __future__ import annotations

from functools import cache
from itertools import combinations, permutations
from math import comb, factorial

import pytest
import torch

import vitrail
from tests.scores.score_helpers import count_forwards
from tests.text.texts import text_model
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.structure import read_structure
from vitrail.errors import InputError, NotApplicableError, OptionError
from vitrail.methods._regression import PairedRegression
from vitrail.methods.coalitions import CoalitionGame, draw_pairs, grid_cells
from vitrail.methods.probe import Probe
from vitrail.testing import tiny_vit

ESTIMATORS = [
    {"estimator": "permutation", "forwards": 400}, {"prior": None, "forwards": 200},
    {"prior": "uniform", "forwards": 200}, {"forwards": 200},
]  # fmt: skip


def noisy_vit(**options):
    """A small model in double precision whose patches differ in their effects."""
    model, generator = tiny_vit(**options), torch.Generator().manual_seed(7)
    for parameter in model.parameters():
        parameter.data += 0.15 * torch.randn(parameter.shape, generator=generator)
    return model.double().eval()


@pytest.fixture(scope="module")
def images():
    return torch.randn(2, 3, 24, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def model():
    return noisy_vit(size=24)


@pytest.fixture(scope="module")
def exact(model, images):
    """Nine players, so that 512 forwards evaluate all coalitions."""
    return vitrail.explain(model, images, "shapley", target=[[0, 1]], keep=True)


def solve_constrained(present, weights, differences, total):
    """Least squares with the efficiency constraint, as the linear system of its Lagrangian."""
    sign = present.double() * 2 - 1
    P = sign.shape[1]
    system = torch.zeros(P + 1, P + 1, dtype=torch.float64)
    system[:P, :P] = sign.T @ (weights[:, None] * sign)
    system[:P, P] = system[P, :P] = 1.0
    right = torch.cat([sign.T @ (weights * differences), total[None]])
    return torch.linalg.solve(system, right)[:P]


# -- estimators on a game that is given as a function ---------------------------------------------------------------


def game_of(present):
    """A game with interactions: players 0 and 1 are alike, player 5 has no effect."""
    x = present.double()
    return (
        2 * x[:, 0] + 2 * x[:, 1] + x[:, 0] * x[:, 1] * x[:, 2] - x[:, 3] * x[:, 4] + 0.5 * torch.sin(x[:, :5].sum(1))
    )


def exact_values(players=6):
    values = torch.zeros(players, dtype=torch.float64)
    orders = list(permutations(range(players)))
    for order in orders:
        prefixes = torch.zeros(players + 1, players, dtype=torch.bool)
        for position, player in enumerate(order):
            prefixes[position + 1 :, player] = True
        values[list(order)] += game_of(prefixes).diff()
    return values / len(orders)


def estimated(count, seed=0, prior=None):
    pairs = draw_pairs(6, count, seed)
    ends = game_of(torch.tensor([[False], [True]]).expand(-1, 6))
    total = (ends[1] - ends[0])[None]
    differences = (game_of(pairs.present) - game_of(~pairs.present))[None]
    found = PairedRegression(pairs, prior is not None)(differences, total, None if prior is None else prior * total)
    return pairs, found, total[0], differences[0]


def test_all_coalitions_give_the_values_of_the_definition():
    pairs, found, total, _ = estimated(31)
    assert pairs.complete
    assert torch.allclose(found.values[0], exact_values(), atol=1e-12)
    assert not found.standard_error.any()
    assert torch.allclose(found.values.sum(), total)
    assert torch.allclose(found.values[0, 0], found.values[0, 1])
    assert abs(float(found.values[0, 5])) < 1e-12


def test_regression_solves_the_constrained_least_squares():
    pairs, found, total, differences = estimated(20)
    assert not pairs.complete
    expected = solve_constrained(pairs.present, pairs.weights, differences, total)
    assert torch.allclose(found.values[0], expected, atol=1e-10)


def test_standard_error_is_that_of_repeated_estimates():
    truth = exact_values()
    for prior in (None, torch.full((1, 6), 1 / 6, dtype=torch.float64)):
        runs = [estimated(24, seed, prior=prior)[1] for seed in range(60)]
        values = torch.cat([run.values for run in runs])
        stated = torch.cat([run.standard_error for run in runs]).square().mean(0).sqrt()
        seen = (values - truth).square().mean(0).sqrt()
        ratio = float(seen.mean() / stated.mean())
        assert 0.4 < ratio < 1.6, ratio


def test_ridge_is_the_posterior_mean_at_the_most_likely_strength():
    prior = torch.tensor([[0.5, 0.3, 0.1, 0.05, 0.03, 0.02]], dtype=torch.float64)
    pairs, found, total, differences = estimated(12, prior=prior)
    mean, sign = (prior * total)[0], pairs.present.double() * 2 - 1
    centred = torch.eye(6, dtype=torch.float64) - 1 / 6
    size = pairs.present.sum(1)
    weights = pairs.weights / (4 * size * (6 - size) / 36 + 12 / (128 * 6))
    W = (weights / weights.mean()).diag()
    best = None
    for exponent in torch.linspace(-2, 2, 49, dtype=torch.float64):
        X = sign @ centred
        strength = 10**exponent * torch.linalg.svdvals(W.sqrt() @ X).square().mean()
        spread = W.sqrt() @ X @ X.T @ W.sqrt() / strength + torch.eye(12, dtype=torch.float64)
        r = W.sqrt() @ (differences - sign @ mean)
        scale = r @ torch.linalg.solve(spread, r) / 12
        evidence = -6 * scale.log() - 0.5 * torch.logdet(spread) - 0.5 * (exponent / 0.15) ** 2
        deviation = torch.linalg.solve(X.T @ W @ X + strength * torch.eye(6, dtype=torch.float64), X.T @ W.sqrt() @ r)
        if best is None or evidence > best[0]:
            best = evidence, mean + deviation
    assert torch.allclose(found.values[0], best[1], atol=1e-9)


def test_pairs_are_stratified_by_size_and_balanced():
    pairs = draw_pairs(196, 511, seed=3)
    sizes = pairs.present.sum(1)
    kernel = torch.tensor([1 / (s * (196 - s)) for s in range(1, 196)])
    share = float(kernel[[0, -1]].sum() / kernel.sum())
    assert abs(float((sizes == 1).double().mean()) - share) < 0.02
    assert len(sizes.unique()) <= 16
    times = pairs.present[sizes == 1].sum(0)
    assert int(times.max()) <= 1, "players are drawn without repetition before any is drawn again"
    early = pairs.first(64).stratum.bincount(minlength=len(pairs.mass)) / 64
    assert torch.allclose(early.double(), pairs.mass, atol=0.04)
    assert torch.equal(draw_pairs(196, 511, seed=3).present, pairs.present)
    assert len(draw_pairs(5, 100, seed=0)) == sum(comb(5, s) for s in range(1, 5)) // 2


# -- the method -----------------------------------------------------------------------------------------------------


def test_values_sum_to_the_effect_of_all_patches(model, images, exact):
    game = CoalitionGame(probe_of(model, images), grid_cells((3, 3), 1))
    none, every = game(torch.tensor([[False], [True]]).expand(-1, 9)).unbind(1)
    for options in [*ESTIMATORS, {}, {"cell": 2}, {"removal": "fill", "forwards": 100}]:
        found = vitrail.explain(model, images, "shapley", target=[[0, 1]], **options)
        assert torch.allclose(found.grid.sum((-1, -2)), every - none) or options.get("removal") == "fill"
    with torch.no_grad():
        whole = model(images).softmax(1)[:, :2] - model(torch.zeros_like(images)).softmax(1)[:, :2]
    assert torch.allclose(found.grid.sum((-1, -2)), whole)


@pytest.mark.parametrize("options", ESTIMATORS, ids=str)
def test_estimates_agree_with_enumeration_within_their_error(model, images, exact, options):
    assert not exact.intermediates["standard_error"][0][0].any()
    found = vitrail.explain(model, images, "shapley", target=[[0, 1]], keep=True, **options)
    error = found.intermediates["standard_error"][0][0].view_as(found.grid)
    assert bool((error > 0).all())
    deviation = (found.grid - exact.grid).abs() / error
    assert float(deviation.square().mean().sqrt()) < 2
    assert float(error.mean()) < 0.5 * float(exact.grid.abs().mean())


def test_dummy_and_symmetry_of_patches():
    model = noisy_vit(size=24)
    model.position.data[:, 1:] = model.position.data[:, 1:2]  # patches differ by their content only
    images = torch.randn(1, 3, 24, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    images[..., :8, :8] = images[..., 16:, 16:]
    found = vitrail.explain(model, images, "shapley", target=1).grid[0, 0]
    assert torch.allclose(found[0, 0], found[2, 2], atol=1e-12)
    assert not torch.allclose(found[0, 0], found[1, 1], atol=1e-6)

    class FirstRow(torch.nn.Module):
        def forward(self, x):
            return torch.stack([x[..., :16, :].mean((1, 2, 3)), x[..., :16, :].square().mean((1, 2, 3))], 1)

    ignored = vitrail.explain(FirstRow(), torch.rand(1, 3, 48, 48), "shapley", target=0, score="logit").grid[0, 0]
    assert ignored[0].abs().min() > 1e-3
    assert ignored[1:].abs().max() < 1e-6


def test_permutation_estimate_is_the_mean_of_marginal_effects(model, images):
    probe = probe_of(model, images[:1])
    game = CoalitionGame(probe, grid_cells((3, 3), 1))
    found = vitrail.explain(
        model, images[:1], "shapley", target=[[0, 1]], estimator="permutation", forwards=2 + 3 * 16
    ).grid.flatten(2)[0]
    orders = torch.rand(3, 9, generator=torch.Generator().manual_seed(0)).argsort(1)
    expected = torch.zeros(2, 9, dtype=torch.float64)
    for order in torch.cat([orders, orders.flip(1)]):
        for position, player in enumerate(order):
            before = torch.zeros(9, dtype=torch.bool)
            before[order[:position]] = True
            after = before.clone()
            after[player] = True
            low, high = game(torch.stack([before, after]))[0]
            expected[:, player] += (high - low) / 6
    assert torch.allclose(found, expected, atol=1e-12)


def test_a_good_prior_helps_and_a_wrong_one_is_overruled(model, images, exact):
    truth = exact.grid[:, 0].flatten(1)
    pairs = draw_pairs(9, 15, seed=1)
    game = CoalitionGame(probe_of(model, images), grid_cells((3, 3), 1))
    none, every = game(torch.tensor([[False], [True]]).expand(-1, 9))[..., 0].unbind(1)
    first, second = game(torch.cat([pairs.present, ~pairs.present]))[..., 0].chunk(2, 1)
    error = {}
    uniform = truth.mean(1, keepdim=True).expand_as(truth)
    for name, prior in {"good": 0.9 * truth + 0.1 * uniform, "wrong": truth.flip(1), "uniform": uniform}.items():
        values = PairedRegression(pairs, ridge=True)(first - second, every - none, prior).values
        error[name] = float((values - truth).norm())
    assert error["good"] < error["uniform"]
    assert error["wrong"] < 0.8 * float((truth.flip(1) - truth).norm())


def test_tolerance_stops_early_and_each_image_for_itself(model, images):
    def run(given, **options):
        return vitrail.explain(model, given, "shapley", target=1, keep=True, forwards=300, **options)

    together = run(images, tolerance=0.3)
    used = together.intermediates["forwards"][0][0]
    assert int(used.max()) < 300
    error = together.intermediates["standard_error"][0][0].mean((1, 2))
    assert bool((error <= 0.3 * together.grid.abs().amax((1, 2, 3))).all())
    for i in range(2):
        assert torch.allclose(run(images[i : i + 1], tolerance=0.3).grid, together.grid[i : i + 1], atol=1e-12)
    assert run(images, tolerance=1e-9).intermediates["forwards"][0][0].tolist() == [300, 300]


def test_forwards_batches_and_progress_are_bounded(images):
    model, sizes = count_forwards(noisy_vit(size=24))
    done = []
    spec = "shapley:prior=uniform,forwards=100"
    found = vitrail.explain(model, images, spec, target=1, batch_size=8, advance=done.append)
    assert max(sizes) <= 8
    assert sum(done) == 2 * 100
    whole = vitrail.explain(model, images, spec, target=1)
    assert torch.allclose(whole.grid, found.grid, atol=1e-12)


def probe_of(model, images, classes=(0, 1)):
    model_inputs = ModelInputs((images,))

    def scorer(output, owner, kind):
        return output.softmax(-1)[:, list(classes)]

    return Probe(model, model_inputs, read_structure(model, model_inputs), scorer, len(classes), max_batch=64)


@pytest.mark.slow
def test_removal_falls_back_to_what_the_model_supports(images):
    import timm

    small = {"img_size": 24, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 5}
    beit = timm.models.Beit(**small, use_rel_pos_bias=True).eval()
    swin = timm.models.SwinTransformer(
        img_size=32, patch_size=2, window_size=4, embed_dim=16, depths=(1, 1), num_heads=(2, 2), num_classes=5
    ).eval()
    for model, size, expected in ((tiny_vit(size=24), 24, "tokens"), (beit, 24, "mask"), (swin, 32, "fill")):
        given = torch.randn(1, 3, size, size)
        grid = (2, 2) if expected == "fill" else (3, 3)
        assert CoalitionGame(probe_of(model, given), grid_cells(grid, 1)).removal == expected
        assert vitrail.explain(model, given, "shapley:quick", target=1).grid.isfinite().all()
    with pytest.raises(NotApplicableError, match="removal='fill'"):
        vitrail.explain(swin, torch.randn(1, 3, 32, 32), "shapley:removal=mask", target=1)
    with pytest.raises(NotApplicableError, match="cannot be dropped"):
        vitrail.explain(beit, torch.randn(1, 3, 24, 24), "shapley:removal=tokens", target=1)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"forwards": 2}, "forwards=2 must be a whole number of at least 4"),
        ({"estimator": "exact"}, "estimator='exact' is not one of 'regression', 'permutation'"),
        ({"removal": "blur"}, "removal='blur' is not one of 'tokens', 'mask', 'fill' or None"),
        ({"tolerance": 0.0}, "tolerance=0.0 must be above 0"),
        ({"prior": "rise"}, "prior='rise' evaluates the model again"),
        ({"prior": "nothing"}, "unknown method 'nothing'"),
        ({"estimator": "permutation", "forwards": 20}, "two pairs of orders of 9 players take 34"),
    ],
)
def test_bad_options_are_refused(model, images, options, said):
    with pytest.raises(OptionError, match=said.split("'")[0]) as refused:
        vitrail.explain(model, images, "shapley", target=1, **options)
    assert said in str(refused.value)


@pytest.mark.parametrize("removal", ["tokens", "mask", "fill"])
def test_special_tokens_of_a_text_stay_present(removal):
    """Every coalition of the words by definition, with [CLS] and [SEP] in all of them, in double precision."""
    model, tokenizer = text_model("bert")
    text = "the film is superb !"
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    words = [1, 2, 3, 4, 5]

    @cache
    def value(coalition):
        kept = [0, *coalition, 6]
        with torch.no_grad():
            if removal == "tokens":
                output = model(ids[:, kept])
            elif removal == "mask":
                output = model(ids, attention_mask=torch.zeros_like(ids).index_fill(1, torch.tensor(kept), 1))
            else:
                vectors = torch.zeros(1, 7, model.config.hidden_size, dtype=torch.float64)
                vectors[:, kept] = model.get_input_embeddings()(ids[:, kept])
                output = model(inputs_embeds=vectors)
        return output.logits.softmax(1)[0, 1]

    expected = torch.zeros(5, dtype=torch.float64)
    for word in words:
        others = [w for w in words if w != word]
        for size in range(5):
            for coalition in combinations(others, size):
                weight = factorial(size) * factorial(4 - size) / factorial(5)
                expected[word - 1] += weight * (value(tuple(sorted((*coalition, word)))) - value(coalition))
    found = vitrail.explain(model, text, "shapley", tokenizer=tokenizer, target=1, removal=removal).text[0]
    assert expected.dtype == found.scores.dtype == torch.float64
    assert torch.allclose(found.scores[0], expected, rtol=1e-8, atol=1e-12)
    pair = vitrail.explain(model, [text, text + " !"], "shapley", tokenizer=tokenizer, target=1, removal=removal)
    assert torch.allclose(pair.text[0].scores[0], expected, rtol=1e-8, atol=1e-12), "padding changes nothing"


def test_a_text_of_special_tokens_only_is_refused():
    model, _ = text_model("bert")
    ids = torch.tensor([[1, 2, 3]])
    given = {"input_ids": ids, "special_tokens_mask": torch.ones_like(ids)}
    with pytest.raises(InputError, match="no tokens beside special ones"):
        vitrail.explain(model, given, "shapley", target=1)


@pytest.mark.parametrize("removal", [None, "tokens", "mask", "fill"])
def test_tokens_of_a_text(removal):
    model, tokenizer = text_model("bert")
    text = "the film is superb !"
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    padded = {"input_ids": torch.nn.functional.pad(ids, (0, 2)), "attention_mask": (torch.arange(9) < 7).long()[None]}
    found = vitrail.explain(model, padded, "shapley", target=1, removal=removal)
    with torch.no_grad():
        whole = model(ids).logits.softmax(1)[0, 1]
        if removal == "tokens":
            none = model(ids[:, :1]).logits
        elif removal == "fill":
            vectors = model.get_input_embeddings()(ids)
            vectors[:, 1:] = 0
            none = model(inputs_embeds=vectors).logits
        else:
            none = model(ids, attention_mask=torch.eye(ids.shape[1])[:1]).logits
    assert torch.allclose(found.grid.sum(), whole - none.softmax(1)[0, 1])
    assert not found.grid[0, 0, [0, 7, 8]].any()
    if removal is None:
        special = torch.tensor([[1, 0, 0, 0, 0, 0, 1, 0, 0]])
        given = vitrail.explain(model, {**padded, "special_tokens_mask": special}, "shapley", target=1)
        words = vitrail.explain(model, text, "shapley", tokenizer=tokenizer, target=1).text[0]
        assert torch.allclose(words.scores[0], given.grid[0, 0, 1:6])
        assert not given.grid[0, 0, 6]


def test_sentences_of_a_prompt_have_the_values_of_the_definition():
    """A fact alone, with the others hidden, is a prompt that the model cannot answer: its value is low, and exact."""
    from vitrail.targets import token
    from vitrail.text import load_tokenizer
    from vitrail.text.prompt_scorer import PromptScorer

    model, tokenizer = vitrail.load("lm-recall"), load_tokenizer("lm-recall")
    facts = ["Anna has the key .", "Ben has the lamp .", "Cleo has the coin ."]
    given = {"tokenizer": tokenizer, "units": facts, "target": token("key")}
    e = vitrail.explain(model, " ".join(facts) + " Anna has the", "shapley:forwards=64", **given)
    pinned = e.named_targets[0][0].pinned
    score = PromptScorer(model.module, e.source.prompts[0], pinned, tokenizer, "mask")

    def value(present):
        kept = torch.ones(1, 19, dtype=torch.bool)
        for i in {0, 1, 2} - set(present):
            kept[0, 1 + 5 * i : 6 + 5 * i] = False
        return float(score(kept)[0])

    orders = list(permutations(range(3)))
    expected = [sum(value(o[: o.index(i) + 1]) - value(o[: o.index(i)]) for o in orders) / 6 for i in range(3)]
    assert e.text[0].scores[0].tolist() == pytest.approx(expected, abs=1e-3)
    assert value([0]) < -5 < value([0, 1])
