"""Reading tables, arrays and images; declarations; the hold-out; and what is released with noise about the rest."""

from __future__ import annotations

import importlib.util
import json
import math
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hush.accounting import Gaussian, Guarantees
from hush.tabular import cells, survey
from hush.tabular.columns import Category, Column, Date, Hashed, Ignored, Number
from hush.tabular.data import Data, Reading, read_data
from hush.tabular.holdout import aside
from hush.tabular.pixels import grid
from hush.tabular.schema import Wanted, read_schema
from hush.tabular.tables import Table, read_table

# Cells


@pytest.mark.parametrize(
    ("cell", "value"),
    [("3", 3.0), (" -2.5e3 ", -2500.0), ("inf", None), ("nan", None), ("1_000", None), ("x", None), ("", None)],
)
def test_a_number_is_a_finite_one(cell: str, value: float | None) -> None:
    assert cells.number(cell) == value


@pytest.mark.parametrize(
    ("cell", "day"),
    [("1970-01-02", 1.0), ("1970/01/03", 2.0), ("04.01.1970", 3.0), ("1970-01-01T12:00:00", 0.5), ("1970-13-01", None)],
)
def test_dates_are_days_since_1970(cell: str, day: float | None) -> None:
    assert cells.date(cell) == day


def test_a_whole_column_is_read_as_its_cells_are() -> None:
    column = ["1", "", "2.5", "?", "1_0", "x", "1e3", "-0"]
    found = cells.numbers(column)
    for cell, value in zip(column, found.tolist(), strict=True):
        expected = cells.number(cell)
        assert math.isnan(value) if expected is None else value == expected


def test_what_a_cell_holds_does_not_depend_on_the_other_rows() -> None:
    column = ["5\0", "7", "1e400", "1_0"]
    for more in ("3", "x", ""):
        one, other = cells.numbers(column), cells.numbers([*column, more])
        np.testing.assert_array_equal(one, other[: len(column)])
    np.testing.assert_array_equal(cells.numbers(["5\0"]), cells.numbers(["5\0", "x"])[:1])


def test_a_long_text_takes_its_own_memory_only() -> None:
    column = ["5"] * 2000 + ["x" * 500_000]
    tracemalloc.start()
    try:
        cells.numbers(column)
        assert tracemalloc.get_traced_memory()[1] < 50e6
    finally:
        tracemalloc.stop()


# Files


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_a_table_is_read_with_quotes_and_a_byte_order_mark(tmp_path: Path) -> None:
    table = read_table(write(tmp_path / "a.csv", '\ufeffname,remark\nAda,"one, ""two"""\n\nBob,\n'))
    assert table.columns == {"name": ["Ada", "Bob"], "remark": ['one, "two"', ""]}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no header"),
        ("a,b\n", "no rows"),
        ("a,a\n1,2\n", "several columns named 'a'"),
        ("a,\n1,2\n", "Column 2"),
        (",a\n0,1\n", "Column 1 .*index=False"),
        ("a;b\n1;2\n", "--delimiter ';'"),
        ("a\tb\n1\t2\n", r"--delimiter '.t'"),
        ("a|b\n1|2\n", "--delimiter"),
        ("a,b\n1,2,3\n", "Line 2"),
        ('a,b\n"1,2\n', "isn't CSV"),
    ],
)
def test_a_broken_table_is_refused_in_one_sentence(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read_table(write(tmp_path / "a.csv", text))


def test_a_table_is_split_where_it_is_said(tmp_path: Path) -> None:
    for text, delimiter in (("a;b\n1;2\n", ";"), ("a\tb\n1\t2\n", "\\t"), ("a\tb\n1\t2\n", "\t")):
        assert read_table(write(tmp_path / "a.csv", text), delimiter).names == ("a", "b")
    assert read_table(write(tmp_path / "a.csv", "a;b\n1;2\n"), ",").names == ("a;b",)  # if it is meant so


def test_a_file_that_grows_while_it_is_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.csv", "a,b\n1,2\n")
    from hush.tabular import tables

    original = tables._csv

    def slow(place: Path, delimiter: str) -> Table:
        found = original(place, delimiter)
        with place.open("a") as file:
            file.write("3,4\n")
        return found

    monkeypatch.setattr(tables, "_csv", slow)
    with pytest.raises(ValueError, match="changed while it was read"):
        read_table(path)


def test_parquet_is_read_cell_by_cell_like_a_table_of_texts(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from datetime import date

    columns = {
        "n": pa.array([1, None, 3], pa.int32()), "d": [date(2024, 1, 31)] * 3, "f": [True, False, None],
        "c": pa.array(["a", None, "b"]).dictionary_encode(), "x": [0.5, 1e-9, -2.0],
    }  # fmt: skip
    pytest.importorskip("pyarrow.parquet").write_table(pa.table(columns), tmp_path / "a.parquet")
    table = read_table(tmp_path / "a.parquet").columns
    assert table["n"] == ["1", "", "3"]
    assert table["f"] == ["True", "False", ""]
    assert table["c"] == ["a", "", "b"]
    assert cells.dates(table["d"]).tolist() == [19753.0] * 3
    assert cells.numbers(table["x"]).tolist() == [0.5, 1e-9, -2.0]


def test_parquet_without_pyarrow_is_one_sentence(tmp_path: Path) -> None:
    pyarrow_is_there = importlib.util.find_spec("pyarrow") is not None
    path = write(tmp_path / "a.parquet", "PAR1")
    with pytest.raises(ValueError, match="Parquet file" if pyarrow_is_there else "pip install pyarrow"):
        read_table(path)


def test_arrays_are_tables_or_pixels_by_their_shape(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, x=np.arange(6.0).reshape(3, 2), y=np.array([0, 1, 1]), extra=np.zeros((5, 2)))
    data = read_data(path, Reading("y"))
    assert isinstance(data.inputs, Table)
    assert data.inputs.columns == {"x0": ["0.0", "2.0", "4.0"], "x1": ["1.0", "3.0", "5.0"]}
    np.savez(path, x=np.zeros((3, 8, 8), dtype=np.uint8), y=np.array([0, 1, 1]))
    data = read_data(path, Reading("y"))
    assert isinstance(data.inputs, np.ndarray)
    assert data.inputs.shape == (3, 1, 8, 8)


def test_an_npz_with_pickles_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, x=np.array([{"a": 1}], dtype=object), y=np.zeros(1))
    with pytest.raises(ValueError, match="plain arrays"):
        read_data(path, Reading("y"))


def test_images_come_with_the_names_of_their_folders(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for label, grey in (("cat", 10), ("dog", 200)):
        (tmp_path / label).mkdir()
        image.fromarray(np.full((12, 12), grey, dtype=np.uint8)).save(tmp_path / label / "1.png")
    data = read_data(tmp_path, Reading(None, image_size=8, grey=True))
    assert isinstance(data.inputs, np.ndarray)
    assert data.targets == ["cat", "dog"]
    assert data.inputs.shape == (2, 1, 8, 8)
    (tmp_path / "dog" / "2.png").write_bytes(b"not an image")
    with pytest.raises(ValueError, match=r"2\.png isn't an image"):
        read_data(tmp_path, Reading(None))


# Declarations


def test_a_schema_reads_the_same_from_json_and_toml(tmp_path: Path) -> None:
    columns = {
        "age": {"kind": "number", "low": 17, "high": 90},
        "work": {"kind": "category", "values": ["a", "b"]},
        "hired": {"kind": "date", "low": "2000-01-01", "high": "2024-12-31"},
        "size": {"kind": "number"},
        "note": {"kind": "text", "buckets": 8},
        "id": {"kind": "ignore"},
    }
    first = read_schema(write(tmp_path / "s.json", json.dumps({"target": "work", "records": 5, "columns": columns})))
    toml = 'target = "work"\nrecords = 5\n[columns]\n' + "\n".join(
        f"{name} = {{ " + ", ".join(f"{k} = {json.dumps(v)}" for k, v in c.items()) + " }"
        for name, c in columns.items()
    )
    assert read_schema(write(tmp_path / "s.toml", toml)) == first
    assert first.columns["age"] == Number.between(17, 90)
    assert first.columns["size"] == Wanted("number")
    assert first.columns["note"] == Hashed(8)


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ({"kind": "numbr"}, "needs a kind"),
        ({"kind": "number", "low": 3, "high": 1}, "ascend"),
        ({"kind": "number", "low": "x", "high": 1}, "needs a number"),
        ({"kind": "number", "values": [1]}, "can't have values"),
        ({"kind": "category", "values": []}, "at least one"),
        ({"kind": "category", "values": ["a", "a"]}, "once each"),
        ({"kind": "text", "buckets": 0}, "buckets"),
        (3, "needs a kind"),
    ],
)
def test_a_wrong_declaration_is_refused_by_the_columns_name(tmp_path: Path, column: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words) as refused:
        read_schema(write(tmp_path / "s.json", json.dumps({"columns": {"age": column}})))
    assert "'age'" in str(refused.value)


COLUMNS: list[Column] = [
    Number.between(0, 10),
    Number(-1, 1, 0.1, 0.5, declared=False),
    Number(0.5, 80, 1.0, 2.0, declared=False, log=True),
    Date.between(0, 100),
    Category(("a", "b")),
    Hashed(4),
    Ignored(),
    Ignored(declared=False),
]


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: column.kind)
def test_a_column_goes_to_json_and_back_and_makes_as_many_features_as_it_says(column: Column) -> None:
    assert Column.from_dict(json.loads(json.dumps(column.to_dict()))) == column
    features = column.encode(["", "?"])
    assert features.shape == (2, column.width)
    assert np.isfinite(features).all()


def test_features_of_a_cell_do_not_depend_on_other_cells() -> None:
    rows = ["3", "", "a", "1970-02-01", "-7e300", "b", "text"]
    for column in COLUMNS:
        if isinstance(column, Number | Date) and column.declared:
            continue
        together = column.encode(rows)
        for place, cell in enumerate(rows):
            np.testing.assert_array_equal(together[place], column.encode([cell])[0])


def test_bounds_become_minus_one_and_one_on_either_scale() -> None:
    assert not Number.between(-1, 10).log
    assert not Number.between(10, 39).log
    assert Number.between(10, 40).log
    for column, middle in ((Number.linear(10, 40), "25"), (Number.between(10, 40), "20"), (Number.between(0, 4), "2")):
        ends = [f"{column.low}", middle, f"{column.high}", "1e9", "-3"]
        np.testing.assert_allclose(column.encode(ends)[:, 0], [-1, 0, 1, 1, -1], atol=1e-6)


def test_text_among_declared_numbers_names_its_row() -> None:
    with pytest.raises(ValueError, match=r"Row 2 has 'many' in 'rooms'"):
        Number.between(0, 10).encode(["3", "many"], "'rooms'")


# Hold-out


def test_adding_a_record_moves_no_other_across_the_hold_out() -> None:
    contents = [f"row {k}".encode() for k in range(500)]
    before = aside(contents, 0.3, b"secret")
    for place in (0, 250, 500):
        after = aside([*contents[:place], b"new", *contents[place:]], 0.3, b"secret")
        np.testing.assert_array_equal(np.delete(after, place), before)


def test_the_hold_out_has_its_share() -> None:
    # 20,000 fair coins of 0.1: beyond 5 standard deviations with probability 6e-7
    share = aside([str(k).encode() for k in range(20_000)], 0.1, b"k").mean()
    assert abs(share - 0.1) < 5 * math.sqrt(0.09 / 20_000)


def test_users_are_put_aside_whole() -> None:
    data = Data(Table({"a": ["1", "2", "3", "4"]}), ["x"] * 4, ["u", "v", "u", "v"])
    for secret in (b"1", b"2", b"3"):
        held = aside(data.contents(), 0.5, secret)
        assert held[0] == held[2]
        assert held[1] == held[3]


# Survey

FIRST, SECOND = survey.Question(survey.FIRST_LOOK, 1.0), survey.Question(survey.SECOND_LOOK, 1.0)


def random_cell(rng: np.random.Generator) -> str:
    kinds = [
        "",
        "?",
        "word",
        f"{rng.integers(1950, 2030)}-05-06",
        "0",
        f"{rng.normal() * 10.0 ** rng.integers(-9, 9):g}",
    ]
    return kinds[rng.integers(len(kinds))]


@pytest.mark.parametrize("seed", range(20))
def test_one_record_moves_every_answer_by_at_most_the_stated_sensitivity(seed: int) -> None:
    rng = np.random.default_rng(seed)
    width, rows = int(rng.integers(1, 6)), int(rng.integers(1, 30))
    table = {f"c{j}": [random_cell(rng) for _ in range(rows)] for j in range(width)}
    wanted: dict[str, Wanted | None] = dict.fromkeys(table)
    fixed = np.random.default_rng(7).normal(size=10_000) * 3 + 8  # the same answers to both, as if released

    def asked(of: dict[str, list[str]]) -> list[tuple[survey.Floats, float]]:
        seen = []

        def ask(question: survey.Question, sums: survey.Floats, sensitivity: float) -> survey.Floats:
            seen.append((sums, sensitivity))
            return np.rint(fixed[: sums.size])

        survey.columns(ask, FIRST, SECOND, of, wanted)
        return seen

    more = asked({name: [*column, random_cell(rng)] for name, column in table.items()})
    for (one, sensitivity), (other, same) in zip(asked(table), more, strict=True):
        assert sensitivity == same
        assert np.linalg.norm(one - other) <= sensitivity * (1 + 1e-12)


def test_without_noise_a_survey_finds_kinds_and_scales() -> None:
    rng = np.random.default_rng(0)
    table = {
        "size": [f"{v:.3f}" for v in rng.normal(50, 10, 5000)],
        "amount": [f"{v:.3f}" for v in rng.lognormal(5, 1, 5000)],
        "when": [f"{1980 + k % 8}-06-01" for k in range(5000)],
        "who": ["ann", "bob"] * 2500,
        "gone": [""] * 5000,
    }
    found = survey.columns(lambda q, sums, s: sums, FIRST, SECOND, table, dict.fromkeys(table), ["size"])
    size, amount, when = found["size"], found["amount"], found["when"]
    assert isinstance(size, Number)
    assert isinstance(amount, Number)
    assert isinstance(when, Date)
    assert size.centre == pytest.approx(50, abs=2)
    assert size.scale == pytest.approx(10, abs=2)
    assert not size.declared
    assert not size.log
    assert amount.log
    assert amount.centre == pytest.approx(5, abs=0.2)
    assert amount.scale == pytest.approx(1, abs=0.2)
    assert isinstance(found["who"], Hashed)
    assert found["gone"] == Ignored(declared=False)


def test_the_questions_cost_what_they_say() -> None:
    (count, classes) = survey.questions([survey.COUNT, survey.CLASSES], 3.0, 1e-6)
    assert count.charges() == ((Gaussian(count.noise_multiplier), 1),)
    assert classes.charges() == ((Gaussian(classes.noise_multiplier), 1), (Guarantees.of(0.0, 1e-8), 1))


def test_a_class_of_one_record_is_shown_no_more_often_than_its_leak() -> None:
    # leak 0.05; in 2,000 trials beyond 100 + 5 standard deviations with probability 3e-7
    question = survey.Question(survey.CLASSES, 3.0, leak=0.05)
    rng = np.random.default_rng(1)

    def ask(asked: survey.Question, sums: survey.Floats, sensitivity: float) -> survey.Floats:
        return np.rint(sums + rng.normal(size=sums.size) * asked.noise_multiplier * sensitivity)

    shown = sum("rare" in survey.classes(ask, question, ["rare"] + ["common"] * 50) for _ in range(2000))
    assert shown <= 100 + 5 * math.sqrt(2000 * 0.05 * 0.95)
    assert "common" in survey.classes(ask, question, ["rare"] + ["common"] * 500)


def test_a_user_speaks_by_their_first_record_only() -> None:
    data = Data(Table({"a": ["1", "2", "3"]}), ["x", "y", "z"], ["u", "u", "v"])
    assert data.speakers() == [0, 2]


def noisy(seed: int) -> survey.Ask:
    rng = np.random.default_rng(seed)

    def ask(asked: survey.Question, sums: survey.Floats, sensitivity: float) -> survey.Floats:
        return np.rint(sums + rng.normal(size=len(sums)) * asked.noise_multiplier * sensitivity)

    return ask


def looks(table: dict[str, list[str]], seed: int, epsilon: float = 3.0) -> dict[str, Column]:
    asked = survey.questions((survey.FIRST_LOOK, survey.SECOND_LOOK), epsilon, 1e-4)
    return survey.columns(noisy(seed), *asked, table, dict.fromkeys(table))


def test_columns_that_are_measured_alike_are_scaled_alike() -> None:
    # fixed seeds; pixels as in a small image: some nearly always 0, some spread over all of 0 to 16
    rng = np.random.default_rng(0)
    spread = np.linspace(0.02, 1, 64)
    pixels = np.rint(16 * rng.random((1400, 64)) * (rng.random((1400, 64)) < spread))
    table = {f"p{j}": [f"{value:g}" for value in pixels[:, j].tolist()] for j in range(64)}
    for seed in range(5):
        found = [column for column in looks(table, seed).values() if isinstance(column, Number)]
        assert len(found) >= 60
        assert len({column.scale for column in found}) == 1
        assert 2 < found[0].scale < 12
        assert all(-40 < column.low < column.high < 60 for column in found)  # no octave that is noise alone


def test_noise_rarely_stretches_a_column_beyond_its_numbers() -> None:
    # an octave far from all numbers would have to exceed (2 log(bins))^(1/2) standard deviations: in any of the 30
    # columns once in some 30 surveys; in these five it doesn't
    rng = np.random.default_rng(0)
    table = {f"c{j}": [f"{v:.6g}" for v in np.exp(rng.normal(j - 15, 0.5, 455)).tolist()] for j in range(30)}
    for seed in range(5):
        for j, column in enumerate(looks(table, seed).values()):
            if isinstance(column, Number):
                assert math.exp(j - 15 - 6) < column.high < math.exp(j - 15 + 6), (seed, j)


# Tables of pixels


def test_the_rows_of_a_table_may_be_images(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "a,y,b,c,d\n1,x,2,3,4\n5,z,,7,8\n")
    data = read_data(path, Reading("y", shape=(2, 2)))
    assert isinstance(data.inputs, np.ndarray)
    assert data.pixels == ("a", "b", "c", "d")
    assert data.inputs.shape == (2, 1, 2, 2)
    assert data.inputs[0, 0].tolist() == [[1, 2], [3, 4]]
    assert np.isnan(data.inputs[1, 0, 0, 1])
    again = read_data(path, Reading("y", shape=(2, 2), pixels=("d", "c", "b", "a")))
    assert np.asarray(again.inputs)[0, 0].tolist() == [[4, 3], [2, 1]]


@pytest.mark.parametrize(
    ("text", "words"),
    [("a,b,c,y\n1,2,3,x\n", "4 pixels, but there are 3"), ("a,b,c,d,y\n1,2,3,?,x\n1,q,3,4,x\n", "'q' in 'b'")],
)
def test_a_table_that_holds_no_images_is_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read_data(write(tmp_path / "a.csv", text), Reading("y", shape=(2, 2)))


@pytest.mark.parametrize(
    ("names", "shape"),
    [
        ([f"pixel_{r}_{c}" for r in range(8) for c in range(8)], (8, 8)),
        ([f"pixel_{r}_{c}" for r in range(1, 10) for c in range(1, 13)], (9, 12)),
        ([f"{r}x{c}" for r in range(1, 29) for c in range(1, 29)], (28, 28)),
        ([f"pixel{k}" for k in range(784)], (28, 28)),
        ([f"pixel{k}" for k in range(1, 785)], (28, 28)),
        ([f"Px {k}" for k in range(64)], (8, 8)),
    ],
)
def test_columns_named_as_a_full_grid_are_an_image_in_any_order(names: list[str], shape: tuple[int, int]) -> None:
    shuffled = np.random.default_rng(0).permutation(np.array(names, dtype=object)).tolist()
    assert grid(names) == grid(shuffled) == (shape, tuple(names))


@pytest.mark.parametrize(
    "names",
    [
        [f"x{k}" for k in range(64)],
        [f"pixel{k}" for k in range(65)],
        [f"pixel{k}" for k in range(2, 66)],
        [f"pixel{k}" for k in range(63)] + ["age"],
        [f"pixel{k}" for k in range(63)] + ["pixel99"],
        [*[f"pixel_{r}_{c}" for r in range(8) for c in range(8)][:-1], "pixel_7_8"],
        [f"pixel_{r}_{c}" for r in range(7) for c in range(9)],
        [f"pixel_{r}_{c}" for r in range(2, 10) for c in range(8)],
        ["pixel_0_0"],
        [f"pixel{k}" for k in range(63)] + ["pixel007"],
    ],
)
def test_columns_that_are_no_full_grid_by_their_names_stay_columns(names: list[str]) -> None:
    assert grid(names) is None


def test_whether_columns_are_an_image_depends_on_the_header_alone(tmp_path: Path) -> None:
    names = [f"pixel_{r}_{c}" for r in range(8) for c in range(8)]
    for cells_of in (["3"] * 64, [""] * 64, ["1e300"] * 64):
        path = write(tmp_path / "a.csv", "\n".join([",".join([*names, "y"]), ",".join([*cells_of, "x"])]))
        data = read_data(path, Reading("y"))
        assert np.asarray(data.inputs).shape == (1, 1, 8, 8)
        assert data.pixels == tuple(names)
        assert isinstance(read_data(path, Reading("y", by_name=False)).inputs, Table)
    path = write(tmp_path / "a.csv", "\n".join([",".join([*names, "y"]), ",".join(["q", *["1"] * 63, "x"])]))
    with pytest.raises(ValueError, match=r"'q' in 'pixel_0_0'.*--pixels none"):
        read_data(path, Reading("y"))


PIXELS = survey.Question(survey.FIRST_PIXELS, 1.0), survey.Question(survey.SECOND_PIXELS, 1.0)


def test_one_range_is_found_for_all_pixels() -> None:
    rng = np.random.default_rng(0)
    values = rng.integers(0, 17, (500, 1, 8, 8)).astype(np.float32)
    values[0, 0, 0, 0] = np.nan
    low, high = survey.bounds(lambda q, sums, s: sums, *PIXELS, values) or (math.nan, math.nan)
    assert low == 0
    assert 16 <= high <= 18

    def noisy(question: survey.Question, sums: survey.Floats, sensitivity: float) -> survey.Floats:
        return np.rint(sums + rng.normal(size=sums.size) * question.noise_multiplier * sensitivity)

    assert survey.bounds(noisy, *PIXELS, values) == (low, high)
    shifted = survey.bounds(noisy, *PIXELS, values / 16 - 0.5)
    assert shifted is not None
    assert shifted[0] <= -0.45
    assert shifted[1] >= 0.45
    assert survey.bounds(noisy, *PIXELS, values[:2]) is None  # lost in the noise


@pytest.mark.parametrize("seed", range(20))
def test_one_image_moves_the_pixels_answers_by_at_most_the_stated_sensitivity(seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = (rng.normal(size=(9, 5)) * 10.0 ** rng.integers(-9, 9, (9, 5))).astype(np.float64)
    values[rng.random(values.shape) < 0.2] = np.nan
    values[-1] = rng.choice([0.0, 3.0, 1e9])  # all of them in one bin
    fixed = np.random.default_rng(7).normal(size=1000) * 3 + 8

    def asked(of: Any) -> list[tuple[survey.Floats, float]]:
        seen = []

        def ask(question: survey.Question, sums: survey.Floats, sensitivity: float) -> survey.Floats:
            seen.append((sums, sensitivity))
            return np.rint(fixed[: sums.size])

        survey.bounds(ask, *PIXELS, of)
        return seen

    for (one, sensitivity), (other, same) in zip(asked(values[:-1]), asked(values), strict=True):
        assert sensitivity == same
        assert np.linalg.norm(one - other) <= sensitivity
