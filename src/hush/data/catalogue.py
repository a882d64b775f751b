"""What is known of each data set in advance: shapes, label counts, digests, and where to get it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Facts:
    """Of one data set.  `digests` maps a file's name to the hex digest (sha256 or md5, by length) of its content."""

    name: str
    shape: tuple[int, ...]
    """Of one record."""
    train: tuple[int, ...]
    """How many training records each class has."""
    test: tuple[int, ...]
    source: str
    """Where to get it."""
    files: str
    """What to put into the folder, in words."""
    digests: dict[str, str] = field(default_factory=dict)


_LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary.html"

CATALOGUE = {
    facts.name: facts
    for facts in (
        Facts(
            "mnist",
            (28, 28),
            (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949),
            (980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009),
            "http://yann.lecun.com/exdb/mnist",
            "a folder mnist with the four IDX files (train-images-idx3-ubyte and so on, .gz or not), or this "
            "project's mnist.npz",
            {"mnist.npz": "99b6212d8b734503d7fa2e29ea6413bad62226998e56555f4a6b0b30072f1aec"},
        ),
        Facts(
            "fashion_mnist",
            (28, 28),
            (6000,) * 10,
            (1000,) * 10,
            "https://github.com/zalandoresearch/fashion-mnist",
            "a folder fashion_mnist with the four IDX files (.gz or not), or this project's fashion_mnist.npz",
            {
                "fashion_mnist.npz": "0515093bb63685d8cbc2b7e52eeba1b00b64cd52afb1c01228b4db5228690b48",
                "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
                "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
                "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
                "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
            },
        ),
        Facts(
            "cifar10",
            (32, 32, 3),
            (5000,) * 10,
            (1000,) * 10,
            "https://www.cs.toronto.edu/~kriz/cifar.html",
            "a folder cifar-10-batches-bin or cifar-10-batches-py as distributed, or cifar10_train_0..3.npz and "
            "cifar10_test.npz",
            {
                "cifar10_train_0.npz": "ab95f310cf1ca6394230d5d0c5ab302ebd784622aab57e25483f2c8b6a60ffa8",
                "cifar10_train_1.npz": "c6d8f10e8ee57d03c9d7703b7eb16842e912bc4fb89bc88075847fbc59e52ece",
                "cifar10_train_2.npz": "f8f3ad5223cfbc1a2952f10adf5079f62012f57827bd2ae54adeb5dabf5942fd",
                "cifar10_train_3.npz": "bcaea9ac40c6b8d3f066e7c7f5e1de8e4d5ddd98056af17e4c24fbff80332e63",
                "cifar10_test.npz": "df1b035ecda5475dbc1849708514657d6147ee89357e4a1abe5a430c43e24fcc",
                "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
                "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
                "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
                "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
                "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
                "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
            },
        ),
        Facts(
            "adult",
            (123,),
            (24720, 7841),
            (12435, 3846),
            _LIBSVM,
            "the LIBSVM files a9a and a9a.t, or this project's adult_a9a.npz",
            {"adult_a9a.npz": "b7e853f52f0f7e6d2d23966a3a01411b18ee199b1d54b6ebc71bd2acfc59c6f2"},
        ),
        Facts(
            "imdb",
            (256,),
            (12500, 12500),
            (12500, 12500),
            "https://ai.stanford.edu/~amaas/data/sentiment",
            "the folder aclImdb as distributed, or this project's imdb.npz",
            {"imdb.npz": "ae523639c86178904c866d323b8455211b076a80e0c9ab486e906e1621fdefe0"},
        ),
        Facts(
            "movielens",
            (2,),
            (56174, 107557, 261197, 348971, 226310),
            (),
            "https://grouplens.org/datasets/movielens/1m",
            "the folder ml-1m as distributed (with ratings.dat), or this project's movielens_1m.npz",
            {
                "movielens_1m.npz": "de64bd4e4526fee1128a6cc83c62c377e5c762becc9c4365b93d03e1c875df35",
                "ratings.dat": "a89aa3591bc97d6d4e0c89459ff39362",
            },
        ),
        Facts(
            "usps",
            (16, 16),
            (1194, 1005, 731, 658, 652, 556, 664, 645, 542, 644),
            (359, 264, 198, 166, 200, 160, 170, 147, 166, 177),
            "https://hastie.su.domains/ElemStatLearn/data.html",
            "zip.train and zip.test (.gz or not), or this project's usps.npz",
            {"usps.npz": "e492bba554b1fb244cd5420d35329c6fd550d90b52f1df1e9ecb1625eed0163e"},
        ),
    )
}


def names() -> tuple[str, ...]:
    """The data sets that can be loaded."""
    return tuple(CATALOGUE)
