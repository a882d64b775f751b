"""Stacked models, the experiments' files, and what reproduces the papers."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from hush import Normalised, PerLayer, Plan, Private, digits
from hush.cli import main
from hush.experiments import alone, architectures, pictures, results, runner, speed, tasks, training
from hush.experiments.accounts import ACCOUNTS, Check, Found
from hush.experiments.coordinates import Coordinates
from hush.experiments.keeper import Keeper, OutOfTimeError
from hush.experiments.networks import NETWORKS, network
from hush.experiments.page import write
from hush.experiments.progress import Progress
from hush.experiments.rows import Experiment, Row, read, read_all
from hush.experiments.stacked import Tape, clipped_sums
from hush.experiments.trainer import Recipe, Records, Trainer, cross_entropy, half_squared_error
from hush.experiments.training import run_row
from hush.methods.mac import MAC, BinaryCrossEntropy, Expansion, SquaredError, ZSteps

FOLDER = Path(__file__).parents[1] / "experiments"


def _by_the_loop(model, parameters, losses, x, y, clip, apart=False):
    """Each model's clipped sum, one example at a time with autograd on the parameters themselves."""
    models, batch = x.shape[:2]
    total = {name: torch.zeros_like(value) for name, value in parameters.items()}
    for s in range(models):
        for b in range(batch):
            mine = {name: value[s : s + 1].clone().requires_grad_() for name, value in parameters.items()}
            loss = losses(model.forward(Tape(), mine, x[s : s + 1, b : b + 1]), y[s : s + 1, b : b + 1]).sum()
            gradients = torch.autograd.grad(loss, list(mine.values()))
            squares = {name: g.square().sum().item() for name, g in zip(mine, gradients, strict=True)}
            for name, g in zip(mine, gradients, strict=True):
                layer = name.removesuffix(".bias")
                counted = [n for n in squares if not apart or n in (layer, layer + ".bias")]
                norm = math.sqrt(sum(squares[n] for n in counted))
                total[name][s] += g[0] * min(1.0, clip / max(norm, 1e-30))
    return total


CASES = {
    "linear on three copies": (architectures.linear(7, 10), (2, 4, 3, 7), None, cross_entropy),
    "linear on many inputs": (architectures.linear(200, 10), (2, 3, 2, 200), None, cross_entropy),
    "multilayer": (architectures.multilayer((6, 5, 4, 10)), (2, 4, 1, 6), None, cross_entropy),
    "mnist network": (architectures.mnist_network(), (2, 3, 1, 28, 28, 1), None, cross_entropy),
    "scattering network": (architectures.scattering_network(5, 4, width=6), (2, 3, 2, 4, 4, 5), None, cross_entropy),
    "autoencoder": (architectures.multilayer((8, 3, 8)), (2, 4, 1, 8), 8, half_squared_error),
    "factorisation": (architectures.factorisation(6, 5, 3), None, 0, half_squared_error),
    "text network": (architectures.text_network(words=5, width=4), 7, None, cross_entropy),
    "averaged embeddings": (architectures.word_network(words=5, width=4), 12, None, cross_entropy),
    "weighted words": (architectures.weighted_words(6, "root"), (2, 4, 1, 9), None, cross_entropy),
    "neural factorisation": (architectures.neural_factorisation(6, 5, classes=10), None, None, cross_entropy),
}


@pytest.mark.parametrize("case", CASES)
def test_stacked_models_clip_as_the_loop_does(case):
    model, shape, width, losses = CASES[case]
    generators = [torch.Generator().manual_seed(seed) for seed in (1, 2)]
    parameters = {k: v.double() for k, v in model.start(generators, torch.device("cpu")).items()}
    parameters = {k: v + 0.1 * torch.randn(v.shape, generator=generators[0]).double() for k, v in parameters.items()}
    if shape is None or isinstance(shape, int):
        x = torch.randint(0, 5, (2, 4, shape or 2), generator=generators[0])
    else:
        x = torch.randn(shape, generator=generators[0]).double()
    y = torch.randint(
        0, 2 if "out" in parameters and parameters["out"].shape[2] == 2 else 10, x.shape[:2], generator=generators[0]
    )
    if width is not None:
        y = torch.randn(*x.shape[:2], *[width] * bool(width), generator=generators[0]).double()
    clip = 0.7
    found = clipped_sums(
        model.forward, parameters, losses, x, y, lambda norms: (clip / norms.clamp_min(1e-30)).clamp_max(1)
    )
    expected = _by_the_loop(model, parameters, losses, x, y, clip)
    assert set(found) == set(expected)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-9, atol=1e-12)


def test_a_halved_output_loss_halves_the_last_layers_sums_where_coordinates_stay():
    parameters = architectures.multilayer((6, 5, 10)).start([torch.Generator().manual_seed(1)], torch.device("cpu"))
    x, y = torch.randn(1, 4, 6, generator=torch.Generator().manual_seed(2)), torch.tensor([[0, 3, 9, 9]])

    def sums(output):
        coordinates = Coordinates(("layer0", "layer1"), 10, steps=0, output=output)
        return coordinates.sums(parameters, x, y, torch.tensor([math.inf]), torch.ones(1, 4))

    whole, half = sums(1.0), sums(0.5)
    for name in ("layer1", "layer1.bias"):
        torch.testing.assert_close(half[name], whole[name] / 2)
        assert whole[name].abs().max() > 0


def test_layers_clipped_one_by_one_are_clipped_as_the_loop_does():
    model, shape, _, losses = CASES["multilayer"]
    generators = [torch.Generator().manual_seed(seed) for seed in (1, 2)]
    parameters = {k: v.double() for k, v in model.start(generators, torch.device("cpu")).items()}
    x = torch.randn(shape, generator=generators[0]).double()
    y = torch.randint(0, 10, x.shape[:2], generator=generators[0])
    seen = []

    def weigh(norms):
        seen.append(norms.shape)
        return (0.7 / norms.clamp_min(1e-30)).clamp_max(1)

    found = clipped_sums(model.forward, parameters, losses, x, y, weigh, apart=True)
    assert seen == [(2, 4, 3)]
    for name, value in _by_the_loop(model, parameters, losses, x, y, 0.7, apart=True).items():
        torch.testing.assert_close(found[name], value, rtol=1e-9, atol=1e-12)


def test_a_row_of_two_layers_moves_by_at_most_its_plans_sensitivity_and_gets_its_noise():
    """One record with huge gradients: each layer's sum has norm C, the whole C sqrt(2), the noise sigma C a layer."""
    row = Row("r", "mnist", "hidden-100", 1, steps=1, noise=4.0, clip=3.0, layers=2)
    plan = row.plan(1)
    model = architectures.multilayer((6, 5, 10))
    records = Records(1e3 * torch.randn(1, 1, 6, generator=torch.Generator().manual_seed(1)), torch.tensor([3]))
    trainer = Trainer(model, cross_entropy, records, [(plan, row.training)], [0], batch=1, steps=1)
    sums = trainer._gradient()
    for layer in ("layer0", "layer1"):
        norm = math.hypot(*(sums[name].norm().item() for name in (layer, layer + ".bias")))
        assert norm == pytest.approx(3.0, rel=1e-5)
    assert trainer.stds.tolist() == pytest.approx([12.0])
    assert plan.noise_multiplier == pytest.approx(4 / math.sqrt(2))
    assert 12.0 / (3.0 * math.sqrt(2)) == pytest.approx(plan.noise_multiplier)


def test_other_groups_than_layers_are_refused_by_the_stack():
    plan = Plan(
        records=4, batch=4, steps=1, noise_multiplier=1.0, delta=1e-3, clip=PerLayer({"layer0": 1.0, "layer1": 2.0})
    )
    records = Records(torch.randn(4, 1, 6), torch.zeros(4, dtype=torch.long))
    with pytest.raises(ValueError, match="each layer at one norm"):
        Trainer(
            architectures.multilayer((6, 5, 10)),
            cross_entropy,
            records,
            [(plan, Recipe(0.1))],
            [0],
            batch=4,
            steps=1,
        )


@pytest.mark.parametrize("case", ["multilayer", "mnist network", "text network"])
def test_a_projection_is_of_the_whole_gradient(case):
    """Two directions' mean square, in float64, against gradients by autograd."""
    model, shape, _, losses = CASES[case]
    generators = [torch.Generator().manual_seed(seed) for seed in (1, 2)]
    parameters = {k: v.double() for k, v in model.start(generators, torch.device("cpu")).items()}
    directions = [
        {k: torch.randn(v.shape, generator=generators[0]).double() for k, v in parameters.items()} for _ in "ab"
    ]
    if isinstance(shape, int):
        x = torch.randint(0, 5, (2, 4, shape), generator=generators[0])
    else:
        x = torch.randn(shape, generator=generators[0]).double()
    y = torch.randint(0, 2, x.shape[:2], generator=generators[0])
    seen = []

    def weigh(norms):
        seen.append(norms)
        return torch.ones_like(norms)

    clipped_sums(model.forward, parameters, losses, x, y, weigh, directions=directions)
    mine = {name: value[:1].clone().requires_grad_() for name, value in parameters.items()}
    loss = losses(model.forward(Tape(), mine, x[:1, 1:2]), y[:1, 1:2]).sum()
    gradients = dict(zip(mine, torch.autograd.grad(loss, list(mine.values())), strict=True))
    squares = [sum((g * v[name][:1]).sum() for name, g in gradients.items()) ** 2 for v in directions]
    torch.testing.assert_close(seen[0][0, 1, 0], torch.sqrt(sum(squares) / 2), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("maxima", [False, True])
def test_the_stacked_cifar_network_is_the_module(maxima):
    """The module with a stacked model's weights gives the same outputs."""
    torch.manual_seed(0)
    stacked = architectures.cifar_network(maxima)
    weights = stacked.start([torch.Generator().manual_seed(0)], torch.device("cpu"))
    module = network("cifar-network" + "-maxima" * maxima)
    convolutions = [layer for layer in module if isinstance(layer, nn.Conv2d)]
    x = torch.randn(1, 2, 1, 32, 32, 3)
    with torch.no_grad():
        for k, layer in enumerate(convolutions, 1):
            layer.weight.copy_(weights[f"conv{k}"][0].T.view_as(layer.weight))
            layer.bias.zero_()
        dense = weights["out"][0].view(4, 4, 256, 10).permute(3, 2, 0, 1)
        module[-1].weight.copy_(dense.reshape(10, -1))
        module[-1].bias.zero_()
        found = stacked.forward(Tape(), weights, x)[0, :, 0]
        torch.testing.assert_close(found, module(x[0, :, 0].movedim(3, 1)), rtol=1e-4, atol=1e-5)
    assert stacked.size == 623_146


def test_the_stacked_text_network_is_the_module():
    torch.manual_seed(0)
    stacked = architectures.text_network()
    weights = stacked.start([torch.Generator().manual_seed(0)], torch.device("cpu"))
    module = network("text-network")
    tokens = torch.randint(0, 8185, (1, 3, 20))
    with torch.no_grad():
        module.words.weight.copy_(weights["words"][0])
        for suffix, name in (("l0", "ahead"), ("l0_reverse", "back")):
            getattr(module.lstm, f"weight_ih_{suffix}").copy_(weights[name][0].T)
            getattr(module.lstm, f"weight_hh_{suffix}").copy_(weights[name + ".state"][0].T)
            getattr(module.lstm, f"bias_hh_{suffix}").zero_()
            getattr(module.lstm, f"bias_ih_{suffix}").zero_()[64:128] = 1.0
        for layer, name in ((module.dense, "dense"), (module.out, "out")):
            layer.weight.copy_(weights[name][0].T)
            layer.bias.zero_()
        found = stacked.forward(Tape(), weights, tokens)[0, :, 0]
        torch.testing.assert_close(found, module(tokens[0]), rtol=1e-4, atol=1e-5)
    assert stacked.size == 598_274


def test_half_precision_inputs_are_clipped_like_others_but_for_rounding():
    model = architectures.scattering_network(5, 4, width=6)
    generators = [torch.Generator().manual_seed(seed) for seed in (1, 2)]
    parameters = model.start(generators, torch.device("cpu"))
    x = torch.randn(2, 3, 2, 4, 4, 5, generator=generators[0]).half()
    y = torch.randint(0, 10, (2, 3), generator=generators[0])

    def found(inputs):
        return clipped_sums(
            model.forward, parameters, cross_entropy, inputs, y, lambda norms: 0.7 / norms.clamp_min(0.7)
        )

    halves, floats = found(x), found(x.float())
    for name, value in floats.items():
        torch.testing.assert_close(halves[name], value, rtol=0.01, atol=2e-3)


@pytest.mark.parametrize("classes", [10, None])
def test_stacked_coordinates_are_those_of_the_method(classes):
    """One of the stacked models as a module: `hush.methods.mac` finds the same coordinates and clipped sums."""
    sizes = (6, 5, 4, 10 if classes else 6)
    model = architectures.multilayer(sizes)
    coordinates = Coordinates(("layer0", "layer1", "layer2"), classes, steps=4, rate=0.05)
    generators = [torch.Generator().manual_seed(seed) for seed in (1, 2)]
    parameters = model.start(generators, torch.device("cpu"))
    x = torch.randn(2, 7, 6, generator=generators[0])
    y = torch.randint(0, 10, (2, 7), generator=generators[0]) if classes else x
    found = coordinates.sums(parameters, x, y, torch.full((2,), 0.4), torch.ones(2, 7))
    layers = [nn.Linear(a, b) for a, b in itertools.pairwise(sizes)]
    module = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])
    with torch.no_grad():
        for k, layer in enumerate(layers):
            layer.weight.copy_(parameters[f"layer{k}"][1].T)
            layer.bias.copy_(parameters[f"layer{k}.bias"][1])
    plan = Plan(records=7, batch=7, steps=1, noise_multiplier=1.0, delta=1e-3, clip=Expansion(0.4))
    private = Private(module, torch.optim.SGD(module.parameters(), lr=1.0), plan)
    mac = MAC(private, BinaryCrossEntropy() if classes else SquaredError(), z_steps=ZSteps(4, 0.05))
    parts, _ = mac._sums(mac.records(x[1], y[1]), mac._bounds())
    assert coordinates.threshold(plan) == 0.4
    for k, part in enumerate(parts):
        both = torch.cat([found[f"layer{k}"][1].T, found[f"layer{k}.bias"][1][:, None]], dim=1).double()
        torch.testing.assert_close(both, part * 0.4 * math.sqrt(3), rtol=1e-5, atol=1e-7)


def _blobs(count: int, seed: int) -> Records:
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 3, (count,), generator=generator)
    x = F.one_hot(y, 3) + 0.3 * torch.randn(count, 3, generator=generator)
    return Records(x[:, None], y)


def test_a_stacked_run_learns_and_its_seeds_differ():
    records = _blobs(400, 0)
    plan = Plan(records=400, batch=100, steps=40, epsilon=8.0, delta=1e-4, clip=Normalised())
    trainer = Trainer(
        architectures.linear(3, 3),
        cross_entropy,
        records,
        [(plan, Recipe(lr=1.0, average=0.9))],
        [0, 1],
        batch=100,
        steps=40,
    )
    trained = trainer.run()
    logits = architectures.linear(3, 3).forward(Tape(), trained.averages, records.x[None].expand(2, *records.x.shape))
    accuracy = (logits[:, :, 0].argmax(2) == records.y).double().mean(1)
    assert (accuracy > 0.9).all()
    assert not torch.equal(trained.weights["out"][0], trained.weights["out"][1])


def test_a_stacked_run_that_was_stopped_goes_on_to_the_same_weights(tmp_path):
    records = _blobs(200, 0)
    plan = Plan(records=200, batch=50, steps=40, epsilon=8.0, delta=1e-4, clip=1.0)

    def trainer():
        runs = [(plan, Recipe(lr=1.0, momentum=0.9, average=0.9))]
        return Trainer(architectures.linear(3, 3), cross_entropy, records, runs, [0, 1], batch=50, steps=40)

    with pytest.raises(OutOfTimeError, match="16 of 40"):
        trainer().run(Keeper(tmp_path / "row", deadline=-math.inf))
    said: list[str] = []
    resumed = trainer().run(Keeper(tmp_path / "row", say=said.append))
    assert said == ["    goes on after step 16"]
    whole = trainer().run()
    assert torch.equal(resumed.weights["out"], whole.weights["out"])
    assert torch.equal(resumed.averages["out"], whole.averages["out"])


@pytest.mark.parametrize("recipe", ["paper", "plain"])
def test_a_run_of_models_alone_that_was_stopped_goes_on_to_the_same_score(recipe, tmp_path, monkeypatch):
    monkeypatch.setattr(alone, "network", lambda name: nn.Linear(3, 3))
    records = _blobs(200, 0)
    task = tasks.Task(Records(records.x[:, 0], records.y), Records(records.x[:, 0], records.y))
    row = Row("r", "t", "m", batch=50, steps=6, noise=2.0, clip=1.0, lr=0.3, recipe=recipe, adam=True)
    whole = alone.accuracies(row, task, 2, Keeper())
    for step in (1, 2, 3):  # each time a step further
        with pytest.raises(OutOfTimeError, match=f"after {step} of 6"):
            alone.accuracies(row, task, 2, Keeper(tmp_path / "row", deadline=-math.inf))
    found = alone.accuracies(row, task, 2, Keeper(tmp_path / "row"))
    assert [score for score, _ in found] == [score for score, _ in whole]


def test_padding_changes_nothing_a_chunk_neither():
    """A padded slot repeats a record with weight zero, so the sum is over the drawn records exactly."""
    records = _blobs(50, 1)
    plan = Plan(records=50, batch=10, steps=2, noise_multiplier=1.0, delta=1e-3, clip=1.0)
    found = []
    for chunk in (None, 7):
        trainer = Trainer(
            architectures.linear(3, 3),
            cross_entropy,
            records,
            [(plan, Recipe(lr=1.0))],
            [0],
            batch=10,
            steps=2,
            chunk=chunk,
        )
        torch.manual_seed(5)
        found.append(trainer._gradient()["out"])
        torch.manual_seed(5)
        index, real = trainer._draw()
        drawn = index[0][real[0]]
        assert len(set(drawn.tolist())) == len(drawn)
    torch.testing.assert_close(found[0], found[1])


def test_the_noise_of_a_stacked_step_has_the_plans_deviation():
    """No gradient (all targets certain): what moves the weights is noise.  10,000 draws: false alarms below 1e-6."""
    records = Records(torch.zeros(20, 1, 5000), torch.zeros(20, dtype=torch.long))
    plan = Plan(records=20, batch=10, steps=1, noise_multiplier=3.0, delta=1e-3, clip=0.5)
    trainer = Trainer(
        architectures.linear(5000, 2), cross_entropy, records, [(plan, Recipe(lr=2.0))], [0], batch=10, steps=1
    )
    moved = trainer.run().weights["out"]
    assert moved.std().item() == pytest.approx(2.0 * 3.0 * 0.5 / 10, rel=0.05)


# The experiments' files, results and page


def test_every_experiment_file_is_read_and_names_what_exists():
    known = read_all(FOLDER)
    assert "bu2019-table1" in known
    for experiment in known.values():
        assert experiment.account or experiment.rows or experiment.times
        assert experiment.account is None or experiment.account in ACCOUNTS
        for row in experiment.rows:
            assert row.task in tasks.TASKS
            assert row.recipe in ("paper", "best", "plain", "baseline", "unsound")
            if row.like:
                assert row.like in {other.name for other in experiment.rows}


def test_an_unknown_key_is_refused_by_name(tmp_path):
    path = tmp_path / "x.toml"
    path.write_text(
        'title = "t"\npaper = "p"\n[[rows]]\nname = "n"\ntask = "mnist"\nmodel = "linear"\nbatch = 1\nlearning = 1\n'
    )
    with pytest.raises(ValueError, match="unknown key 'learning'"):
        read(path)


def test_best_rows_certify_at_most_what_they_promise():
    row = next(row for row in read_all(FOLDER)["bu2019-table2"].rows if row.name == "epsilon 3")
    plan = row.plan(29_305)
    assert plan is not None
    assert plan.promise().upper <= 3.0


def test_plain_rows_have_no_plan():
    row = next(row for row in read_all(FOLDER)["bu2019-table2"].rows if row.recipe == "plain")
    assert row.plan(1000) is None


@pytest.mark.parametrize(
    "name", ["bu2019_table1", "bu2019_table4", "bu2019_figure4", "dong2022_figure3", "dong2022_figure6"]
)
def test_the_papers_stated_numbers_come_out(name, tmp_path):
    found = ACCOUNTS[name](tmp_path)
    assert [check.what for check in found.checks if not check.holds] == []
    for figure in found.figures:
        assert (tmp_path / figure).stat().st_size > 1000


def test_baselines_are_scored_without_a_plan():
    x = torch.eye(4).repeat(20, 1)[:, None]
    y = torch.arange(4).repeat(20) % 2
    task = tasks.Task(Records(x, y), Records(x[:8], y[:8]))
    for name in ("nearest-neighbours", "naive-bayes", "tree"):
        result = run_row(Row(name, "adult", name, 1, recipe="baseline"), task, torch.device("cpu"))
        assert result["mean"] == 100.0
        assert "epsilon" not in result


def test_networks_have_the_parameters_their_papers_state():
    stated = {
        "mnist-network": architectures.mnist_network().size,
        "cifar-network": 623_146,
        "cifar-network-maxima": 623_146,
        "text-network": 598_274 + 512,  # PyTorch's second biases
        "alexnet": 21_598_922,
        "vgg13": 32_394_562,
    }
    with torch.device("meta"):
        found = {name: sum(p.numel() for p in network(name).parameters()) for name in NETWORKS}
    assert found == stated
    assert stated["mnist-network"] == 26_010


def test_a_failed_row_never_replaces_a_number(tmp_path):
    results.keep_row(tmp_path, "x", {"name": "a", "mean": 1.0})
    results.keep_row(tmp_path, "x", {"name": "a", "failed": "no"})
    results.keep_row(tmp_path, "x", {"name": "b", "failed": "no"})
    assert [row.get("mean") for row in results.load(tmp_path, "x")["rows"]] == [1.0, None]


def _tiny(tmp_path):
    """An experiment on a made-up Adult of 300 records, and its folder of data."""
    generator = torch.Generator().manual_seed(0)
    for name, count in (("a9a", 300), ("a9a.t", 60)):
        labels = torch.randint(0, 2, (count,), generator=generator).tolist()
        (tmp_path / name).write_text("".join(f"{'+1 1:1' if y else '-1 2:1'} 7:1\n" for y in labels))
    folder = tmp_path / "experiments"
    folder.mkdir()
    (folder / "tiny.toml").write_text(
        'title = "Tiny"\npaper = "bu2019"\n[[rows]]\nname = "one"\ntask = "adult"\nmodel = "binary-linear"\n'
        "batch = 100\nsteps = 30\nepsilon = 8.0\nlr = 1.0\nseeds = 2\ntarget = 60.0\n"
    )
    return folder


def test_a_row_is_trained_kept_and_not_trained_again(tmp_path, monkeypatch):
    folder = _tiny(tmp_path)
    monkeypatch.setattr("hush.data.loading._check_counts", lambda facts, found: None)
    said: list[str] = []

    def run(**changes):
        options = {"data_dir": str(tmp_path), "device": torch.device("cpu"), "quick": False, "seeds": None}
        options |= {"progress": Progress(folder, "tiny", math.inf), "again": False, "say": said.append} | changes
        runner.run_rows(read(folder / "tiny.toml"), folder / "results", **options)
        return not options["progress"].late

    assert run()
    row = results.load(folder / "results", "tiny")["rows"][0]
    assert len(row["scores"]) == 2
    assert row["mean"] > 90
    assert row["epsilon"] <= 8.0
    assert {"date", "hush", "torch", "python", "device"} <= set(row["setting"])
    assert run()
    assert "there is a result already" in said[-1]
    progress = Progress(folder, "another", -math.inf)
    progress.add("something of this start")
    assert not run(again=True, progress=progress)


def test_the_page_has_the_numbers_and_says_what_is_missing(tmp_path):
    folder = _tiny(tmp_path)
    page = tmp_path / "docs" / "page.md"
    write(folder, page)
    assert "not run yet" in page.read_text()
    row = {
        "name": "one",
        "metric": "accuracy",
        "mean": 61.234,
        "deviation": 0.5,
        "scores": [1, 2],
        "seconds": 1.0,
        "epsilon": 7.9,
    }
    results.keep_row(folder / "results", "tiny", row)
    write(folder, page)
    assert "**61.23** ± 0.50%" in page.read_text()
    assert "reached" in page.read_text()
    del row["epsilon"]
    results.keep_row(folder / "results", "tiny", row | {"epsilon_above": 10_000.0})
    write(folder, page)
    assert "above 10,000" in page.read_text()


def test_ways_that_are_timed_again_leave_the_others(tmp_path):
    results.keep_row(tmp_path, "x", {"name": "a", "times": {"plain": 1, "loop": 2}})
    results.keep_row(tmp_path, "x", {"name": "a", "times": {"plain": 3}})
    assert results.load(tmp_path, "x")["rows"] == [{"name": "a", "times": {"plain": 3, "loop": 2}}]


def test_a_row_without_a_usable_epsilon_says_so():
    """One projection: its epsilon has no finite upper end, which JSON couldn't hold."""
    row = Row("r", "mnist", "hidden-100", 256, steps=100, noise=0.9, projections=1)
    records = Records(torch.zeros(50_000, 1), torch.zeros(50_000))
    found = training._promise(row, tasks.Task(records, records))
    assert "epsilon" not in found
    assert found["epsilon_above"] > 40


def test_every_way_of_clipping_is_timed(monkeypatch):
    monkeypatch.setattr(speed, "SECONDS", 0.02)
    timing = speed.Timing("t", "mnist-network", records=60, batch=3, shape=(1, 28, 28), projections=(1,))
    found = speed.measure(timing, torch.device("cpu"), lambda text: None, math.inf)
    assert list(found) == ["plain", "loop", "vmap", "ghost", "projected 1"]  # graphs are captured on a GPU only
    for way in found.values():
        assert way["seconds"] == pytest.approx(20 * way["seconds_a_step"], abs=1e-3)
    assert speed.measure(timing, torch.device("cpu"), lambda text: None, -math.inf) == {}


def test_curves_and_sweeps_are_drawn_where_there_are_results(tmp_path):
    known = read_all(FOLDER)
    for name in pictures.FIGURES:
        assert pictures.draw(known[name], {}, tmp_path) == []
        scores = {}
        for row in known[name].rows:
            curve = {"epochs": [1.0, 2.0], "test": [88.0, 90.0], "train": [89.0, 91.0]}
            scores[row.name] = {"mean": 90.0, "deviation": None} | ({"curve": curve} if row.watch else {})
        drawn = pictures.draw(known[name], scores, tmp_path)
        assert drawn
        assert all((tmp_path / figure).stat().st_size > 1000 for figure in drawn)


def test_reproduce_lists_and_refuses_unknown_names(capsys):
    assert main(["reproduce", "list", "--experiments", str(FOLDER)]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in read_all(FOLDER))  # whole, in 80 columns too
    assert main(["reproduce", "nonsense", "--experiments", str(FOLDER)]) == 2
    assert "There is no experiment" in capsys.readouterr().err


def test_reproduce_that_is_interrupted_says_how_to_go_on(tmp_path, capsys, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    folder = _tiny(tmp_path)
    monkeypatch.setattr(runner, "run_rows", interrupted)
    assert main(["reproduce", "tiny", "--experiments", str(folder), "--data-dir", str(tmp_path)]) == 130
    assert "run it again to go on" in capsys.readouterr().err


def test_a_row_says_its_score_beside_the_papers_and_its_epsilon():
    row = Row("r", "mnist", "hidden-100", 256, paper={"accuracy": 95.0, "epsilon": 2.0})
    said = runner._in_words(row, {"mean": 94.7, "deviation": 0.19, "epsilon": 1.6696})
    assert said == "accuracy 94.7% +- 0.19 (the paper: 95%), certified epsilon 1.670"


def test_reproduce_without_data_says_so_in_a_sentence(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("HUSH_DATA", raising=False)
    folder = _tiny(tmp_path)
    assert main(["reproduce", "tiny", "--experiments", str(folder)]) == 2
    assert "HUSH_DATA" in capsys.readouterr().err


def _three(tmp_path, monkeypatch):
    """`_tiny` with three rows of 64 steps, and the command that runs them."""
    folder = _tiny(tmp_path)
    text = (folder / "tiny.toml").read_text().replace("steps = 30", "steps = 64")
    row = text[text.index("[[rows]]") :]
    (folder / "tiny.toml").write_text(text + "".join(row.replace('"one"', f'"{name}"') for name in ("two", "three")))
    monkeypatch.setattr("hush.data.loading._check_counts", lambda facts, found: None)
    return folder, ["reproduce", "tiny", "--experiments", str(folder), "--data-dir", str(tmp_path)]


@pytest.mark.parametrize("again", [False, True])
def test_every_start_with_a_limit_goes_further_until_all_rows_are_done(again, tmp_path, capsys, monkeypatch):
    folder, command = _three(tmp_path, monkeypatch)
    if again:
        assert main(command) == 0
        command.append("--again")
    trained = []
    keep = results.keep_row
    monkeypatch.setattr(results, "keep_row", lambda *args: (trained.append(args[2]["name"]), keep(*args)))
    capsys.readouterr()
    for _ in range(20):
        assert main([*command, "--limit", "1e-9"]) == 0
        if "Time ran out" not in capsys.readouterr().out:
            break
    assert trained == ["one", "two", "three"]
    assert list((folder / "results" / "partial").iterdir()) == []
    assert main(command) == 0
    assert len(trained) == (6 if again else 3)  # a new run


def test_accounts_stop_in_time_and_are_not_computed_again(tmp_path, capsys, monkeypatch):
    folder = _tiny(tmp_path)
    computed = []
    for name in ("a", "b"):
        (folder / f"{name}.toml").write_text(f'title = "T"\npaper = "bu2019"\naccount = "{name}"\n')
        found = Found(checks=(Check(f"number {name}", 1.5, 1.25, 0.1),))
        monkeypatch.setitem(ACCOUNTS, name, lambda images, name=name, found=found: (computed.append(name), found)[1])
    command = ["reproduce", "a", "b", "--accounts", "--experiments", str(folder), "--limit", "1e-9"]
    assert main(command) == 0
    assert computed == ["a"]
    said = capsys.readouterr().out
    assert "number a: the paper 1.5, here 1.25, NOT reproduced" in said
    assert "Time ran out" in said
    assert main(command) == 0
    assert computed == ["a", "b"]
    assert "Time ran out" not in capsys.readouterr().out


def test_reproduce_can_do_accounts_only_without_data(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("HUSH_DATA", raising=False)
    assert main(["reproduce", "tiny", "--accounts", "--experiments", str(_tiny(tmp_path))]) == 0


def test_a_search_that_was_stopped_goes_on_with_what_is_left(tmp_path):
    records = _blobs(200, 0)
    task = tasks.Task(records, records)
    row = Row(
        "r", "adult", "linear", 50, steps=32, epsilon=8.0, delta=1e-4, grid={"lr": [0.1, 1.0], "clip": [1.0, 2.0]}
    )
    whole = training.search(row, task)
    starts = 0
    while True:
        starts += 1
        try:
            found = training.search(row, task, Keeper(tmp_path, -math.inf))
            break
        except OutOfTimeError:
            assert starts < 9
    assert starts > 2
    assert found == whole


def test_a_failed_row_is_named_and_the_status_says_so(tmp_path, capsys, monkeypatch):
    _, command = _three(tmp_path, monkeypatch)
    run = training.run_row

    def failing(row, *args, **options):
        if row.name == "two":
            raise RuntimeError("no")
        return run(row, *args, **options)

    monkeypatch.setattr(training, "run_row", failing)
    assert main(command) == 1
    said = capsys.readouterr()
    assert "two failed: no" in said.out
    assert "Failed: tiny: two." in said.err


def test_missing_data_stop_their_own_rows_only(tmp_path, capsys, monkeypatch):
    folder, command = _three(tmp_path, monkeypatch)
    text = (folder / "tiny.toml").read_text()
    (folder / "absent.toml").write_text(text.replace('"adult"', '"mnist"').replace("binary-linear", "linear"))
    assert main(["reproduce", "absent", *command[1:]]) == 2
    assert "Left out, since their data can't be read: absent (mnist)." in capsys.readouterr().err
    assert len(results.load(folder / "results", "tiny")["rows"]) == 3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--device", "tpu"], "cpu or cuda, not tpu"),
        (["--device", "meta"], "cpu or cuda, not meta"),
        (["--device", "cuda:99"], "PyTorch sees no device cuda:99"),
        (["--seeds", "0"], "at least 1, not 0"),
        (["--seeds", "-1"], "at least 1, not -1"),
        (["--limit", "-3"], "above 0, not -3"),
        (["--limit", "nan"], "above 0, not nan"),
    ],
)
def test_reproduce_refuses_what_makes_no_sense(options, words, tmp_path, capsys):
    command = ["reproduce", "tiny", "--experiments", str(_tiny(tmp_path)), "--data-dir", str(tmp_path)]
    assert main([*command, *options]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert "Traceback" not in said


def test_a_quick_row_says_on_how_little_it_was_trained(tmp_path, capsys, monkeypatch):
    folder, command = _three(tmp_path, monkeypatch)
    assert main([*command, "--quick"]) == 0
    said = capsys.readouterr().out
    assert "% after 300 records, 30 steps, 1 seed, certified epsilon" in said
    assert f"the quick rows are in {folder / 'results' / 'quick'} only" in said


def test_upper_ends_are_printed_rounded_up_and_what_was_typed_as_it_was():
    assert (digits.up(28.046, 3), digits.up(12.7494, 3), digits.up(0.3216, 3)) == ("28.1", "12.8", "0.322")
    assert (digits.up(9.996, 3), digits.up(5.0, 3), digits.up(1234.2, 4)) == ("10.00", "5.00", "1235")
    assert (digits.ceiling(0.86441, 4), digits.ceiling(0.83, 4), digits.ceiling(3.0, 4)) == (
        "0.8645",
        "0.8300",
        "3.0000",
    )
    assert digits.floor(77.69, 1) == "77.6"


def test_no_certified_epsilon_on_the_page_is_below_the_result(tmp_path):
    """Of the committed results: every cell of a training row, and the one-minute table."""
    page = tmp_path / "docs" / "page.md"
    write(FOLDER, page)
    text = page.read_text()
    for experiment in read_all(FOLDER).values():
        for score in results.load(FOLDER / "results", experiment.name)["rows"]:
            if "epsilon" in score:
                assert f"| {digits.ceiling(score['epsilon'], 4)} |" in text
                assert float(digits.ceiling(score["epsilon"], 4)) >= score["epsilon"]
    claimed = text[text.index("What was claimed") : text.index("What hush reaches")]
    assert "| 31.12 | **28.1** |" in claimed
    assert "| 10.61 | **12.8** |" in claimed
    assert "large noise, sigma 8, 16 epochs" in claimed
    assert "as stated" not in claimed


def test_numbers_are_counted_once_and_only_if_a_paper_states_them(tmp_path):
    folder = _tiny(tmp_path)
    for name in ("a", "b"):
        (folder / f"{name}.toml").write_text('title = "T"\npaper = "dong2022"\naccount = "bu2019_table1"\n')
        found = Found(
            checks=(
                Check("in both", 2.89, 2.89, 0.01),
                Check("one way", 1.34, 1.34, 0.01, number="1.34"),
                Check("another way", 1.34, 1.35, 0.02 if name == "a" else 0.0, number="1.34"),
                Check("computed twice", 0.8, 0.8, 0.01, stated=False),
            )
        )
        results.store(folder / "results", results.load(folder / "results", name) | {"account": found.to_dict()})
    page = tmp_path / "docs" / "page.md"
    write(folder, page)
    text = " ".join(page.read_text().split())
    assert "1 of 2 numbers that the papers state, and 2 of 2 checks of our own" in text


def test_targets_that_are_no_papers_claim_say_so(tmp_path):
    page = tmp_path / "docs" / "page.md"
    write(_tiny(tmp_path), page)
    assert "at least 60 (ours)" in page.read_text()


def test_timings_that_were_stopped_go_on_with_the_other_ways(tmp_path, monkeypatch):
    monkeypatch.setattr(speed, "SECONDS", 0.02)
    timing = speed.Timing("t", "mnist-network", records=60, batch=3, shape=(1, 28, 28), projections=(1,))
    experiment = Experiment("x", "X", "bu2021", times=(timing,))
    seen = []
    for _ in range(5):  # each start measures one
        progress = Progress(tmp_path, "x", -math.inf)
        options = {"device": torch.device("cpu"), "quick": False, "again": False, "say": lambda text: None}
        runner.run_times(experiment, tmp_path, progress=progress, **options)
        seen.append(len(results.load(tmp_path, "x")["rows"][0]["times"]))
    assert seen == [1, 2, 3, 4, 5]
