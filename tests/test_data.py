"""Data sets in every format they come in, from tiny files made here; the real ones where HUSH_DATA is set."""

from __future__ import annotations

import gzip
import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from hush import data
from hush.data import formats, packed

RNG = np.random.default_rng(0)


def _bytes(*shape: int) -> np.ndarray:
    return RNG.integers(0, 256, shape, dtype=np.uint8)


def _idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes() + array.tobytes()


def _write_idx(folder: Path, packed_: bool) -> tuple[np.ndarray, ...]:
    arrays = (_bytes(6, 28, 28), _bytes(6) % 10, _bytes(4, 28, 28), _bytes(4) % 10)
    names = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    folder.mkdir()
    for name, array in zip(names, arrays, strict=True):
        raw = _idx(array)
        if packed_:
            (folder / f"{name}-ubyte.gz").write_bytes(gzip.compress(raw))
        else:
            (folder / f"{name}-ubyte").write_bytes(raw)
    return arrays


@pytest.mark.parametrize("packed_", [False, True])
@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_idx_files_are_read_gzipped_or_not(tmp_path, name, packed_):
    arrays = _write_idx(tmp_path / name, packed_)
    found = data.load(name, tmp_path, check=False)
    for ours, theirs in zip((found.train.x, found.train.y, found.test.x, found.test.y), arrays, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_truncated_idx_file_is_refused(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(_idx(_bytes(3, 4))[:-1])
    with pytest.raises(ValueError, match="get it again"):
        formats.idx(path)


def _cifar_batches() -> list[tuple[np.ndarray, np.ndarray]]:
    return [(_bytes(2, 3072), _bytes(2) % 10) for _ in range(6)]


def test_cifar_binary_batches_become_images(tmp_path):
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    batches = _cifar_batches()
    names = [*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"]
    for name, (x, y) in zip(names, batches, strict=True):
        (folder / name).write_bytes(np.concatenate([y[:, None], x], 1).tobytes())
    found = data.load("cifar10", tmp_path, check=False)
    assert found.train.x.shape == (10, 32, 32, 3)
    assert found.train.x[3, 5, 7, 1] == batches[1][0][1, 1024 + 5 * 32 + 7]
    np.testing.assert_array_equal(found.test.y, batches[5][1])


def test_cifar_pickled_batches_are_read_without_trusting_them(tmp_path):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    batches = _cifar_batches()
    for name, (x, y) in zip([*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"], batches, strict=True):
        (folder / name).write_bytes(pickle.dumps({b"data": x, b"labels": y.tolist()}, protocol=2))
    found = data.load("cifar10", tmp_path, check=False)
    assert found.train.x[0, 0, 1, 2] == batches[0][0][0, 2048 + 1]
    np.testing.assert_array_equal(found.train.y[:2], batches[0][1])


def test_a_pickle_that_would_run_code_is_refused(tmp_path):
    class Bad:
        def __reduce__(self):
            return os.system, ("true",)

    path = tmp_path / "data_batch_1"
    path.write_bytes(pickle.dumps(Bad()))
    with pytest.raises(ValueError, match="don't trust it"):
        formats.cifar_pickled([path])


def test_delta_coded_cifar_parts_decode_to_the_images_they_were_made_of(tmp_path):
    parts = [(_bytes(3, 32, 32, 3), _bytes(3) % 10) for _ in range(5)]
    for name, (x, y) in zip([*(f"cifar10_train_{k}" for k in range(4)), "cifar10_test"], parts, strict=True):
        np.savez_compressed(tmp_path / f"{name}.npz", d=packed.cifar_deltas(x), y=y)
    found = data.load("cifar10", tmp_path, check=False)
    np.testing.assert_array_equal(found.train.x, np.concatenate([x for x, _ in parts[:4]]))
    np.testing.assert_array_equal(found.test.x, parts[4][0])


def test_libsvm_text_becomes_zeros_and_ones(tmp_path):
    (tmp_path / "a9a").write_text("-1 3:1 11:1 \n+1 1:1 123:1\n")
    (tmp_path / "a9a.t").write_text("+1 5:1\n")
    found = data.load("adult", tmp_path, check=False)
    assert found.train.y.tolist() == [0, 1]
    assert np.flatnonzero(found.train.x[0]).tolist() == [2, 10]
    assert np.flatnonzero(found.train.x[1]).tolist() == [0, 122]
    assert found.test.x.sum() == 1


@pytest.mark.parametrize("entry", ["124:1", "0:1", "3:0.5"])
def test_libsvm_text_with_other_features_is_refused(tmp_path, entry):
    path = tmp_path / "a9a"
    path.write_text(f"+1 {entry}\n")
    with pytest.raises(ValueError, match="expected 1 at an index"):
        formats.libsvm(path, 123)


def test_reviews_become_word_ranks_padded_in_front_and_cut_to_their_end(tmp_path):
    folder = tmp_path / "aclImdb"
    texts = {
        "train/neg/0_1.txt": "The film, the FILM!<br />bad",
        "train/pos/0_9.txt": "the good",
        "test/neg/0_2.txt": "unseen bad the",
        "test/pos/0_8.txt": "good good good good good",
    }
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (train, labels), (test, _) = formats.reviews(folder, words=7, length=4)
    # by frequency, then spelling: the (3), film (2), bad, br, good
    assert labels.tolist() == [0, 1]
    assert train[1].tolist() == [0, 1, 4, 2]  # good has index 8, outside the seven
    assert train[0].tolist() == [4, 5, 2, 6]
    assert test[0].tolist() == [0, 1, 6, 4]  # a word never met in training is dropped
    assert test[1].tolist() == [2, 2, 2, 2]
    found = data.load("imdb", tmp_path, check=False)
    assert found.train.x.shape == (2, 256)


def test_ratings_number_users_and_movies_from_zero(tmp_path):
    (tmp_path / "ml-1m").mkdir()
    (tmp_path / "ml-1m" / "ratings.dat").write_text("1::1193::5::978300760\n1::661::3::978302109\n2::1193::4::1\n")
    found = data.load("movielens", tmp_path, check=False)
    assert found.train.x.tolist() == [[0, 1], [0, 0], [1, 1]]
    assert found.train.y.tolist() == [5, 3, 4]
    assert len(found.test) == 0


def test_packed_ratings_are_the_same_pairs(tmp_path):
    np.savez(tmp_path / "movielens_1m.npz", user=np.int16([0, 2]), movie=np.int16([1, 0]), rating=np.uint8([4, 1]))
    assert data.load("movielens", tmp_path, check=False).train.x.tolist() == [[0, 1], [2, 0]]


def test_zip_digits_keep_their_grey_levels(tmp_path):
    grey = np.round(np.linspace(-1, 1, 256), 3)
    for name in ("zip.train", "zip.test"):
        with gzip.open(tmp_path / f"{name}.gz", "wt") as file:
            file.write("6.0000 " + " ".join(f"{v:.4f}" for v in grey) + "\n")
    found = data.load("usps", tmp_path, check=False)
    assert found.train.y.tolist() == [6]
    np.testing.assert_array_equal(found.train.x[0].ravel(), np.rint(1000 * (grey + 1)))


def test_plain_npz_files_are_read(tmp_path):
    arrays = {"x_train": _bytes(3, 28, 28), "y_train": _bytes(3), "x_test": _bytes(2, 28, 28), "y_test": _bytes(2)}
    np.savez(tmp_path / "mnist.npz", **arrays)
    found = data.load("mnist", tmp_path, check=False)
    np.testing.assert_array_equal(found.train.x, arrays["x_train"])
    np.testing.assert_array_equal(found.test.y, arrays["y_test"])


def test_an_unknown_digest_is_refused_unless_unchecked(tmp_path):
    np.savez(tmp_path / "usps.npz", x_train=1, y_train=1, x_test=1, y_test=1)
    with pytest.raises(ValueError, match=r"digest differs.*get it again from http"):
        data.load("usps", tmp_path)


def test_files_of_the_wrong_size_are_refused_even_where_no_digest_is_known(tmp_path):
    _write_idx(tmp_path / "mnist", packed_=False)
    with pytest.raises(ValueError, match="6 training records"):
        data.load("mnist", tmp_path)


@pytest.mark.parametrize("damage", [lambda raw: raw[:-9], lambda raw: b"no gzip", lambda raw: raw[:10] + b"x" * 40])
def test_a_damaged_archive_says_to_get_it_again(tmp_path, damage):
    _write_idx(tmp_path / "mnist", packed_=True)
    path = tmp_path / "mnist" / "train-images-idx3-ubyte.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match="can't be unpacked; get it again"):
        data.load("mnist", tmp_path, check=False)


@pytest.mark.parametrize("name", data.names())
def test_an_absent_set_says_in_a_sentence_where_to_get_it_and_where_to_put_it(tmp_path, name):
    with pytest.raises(ValueError, match=r"^The data set .* get it from http.* and put there .*\.$") as error:
        data.load(name, tmp_path)
    assert str(tmp_path) in str(error.value)
    assert ".npz" not in str(error.value).split(", or ")[0]  # what can be got comes first


def test_without_any_folder_the_ways_to_give_one_are_named(monkeypatch):
    monkeypatch.delenv("HUSH_DATA", raising=False)
    with pytest.raises(ValueError, match="--data-dir, or set HUSH_DATA"):
        data.load("mnist")


def test_an_unknown_name_is_refused_with_the_known_ones(tmp_path):
    with pytest.raises(ValueError, match="usps"):
        data.load("imagenet", tmp_path)


def test_several_folders_are_searched_in_order(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / "a9a").write_text("+1 1:1\n")
    (tmp_path / "b" / "a9a.t").write_text("+1 2:1\n")
    monkeypatch.setenv("HUSH_DATA", f"{tmp_path / 'a'}{os.pathsep}{tmp_path / 'b'}")
    assert len(data.load("adult", check=False).test) == 1


def test_a_cut_is_a_partition_that_its_seed_repeats(tmp_path):
    lines = "".join(f"1::{k + 1}::{k % 5 + 1}::0\n" for k in range(100))
    (tmp_path / "ml-1m").mkdir()
    (tmp_path / "ml-1m" / "ratings.dat").write_text(lines)
    whole = data.load("movielens", tmp_path, check=False)
    once, again = whole.cut(0.2, seed=3), whole.cut(0.2, seed=3)
    assert (len(once.train), len(once.test)) == (80, 20)
    assert sorted([*once.train.x[:, 1], *once.test.x[:, 1]]) == list(range(100))
    np.testing.assert_array_equal(once.test.x, again.test.x)


@pytest.mark.skipif("HUSH_DATA" not in os.environ, reason="HUSH_DATA names no folder with the real data sets")
@pytest.mark.parametrize("name", data.names())
def test_the_real_set_passes_its_checks(name):
    assert len(data.load(name).train) == sum(data.catalogue.CATALOGUE[name].train)
