"""MNIST and Fashion-MNIST: 28 x 28 grey images as rows of 784 values in [0, 1], with the published test part."""

import gzip
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pyrobnn.data.in_memory import Data
from pyrobnn.datasets.published import PublishedFile, PublishedSet, Splits

_MNIST_HOME = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_FASHION_HOME = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/"
_CLOTHES = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")


def read_images(paths: Sequence[Path]) -> tuple[Data, Splits]:
    """Return the images and labels of pairs of IDX files: those of a test part, or those to train on before them.

    The data are not to be standardised: pixels share one scale, and some of them are hardly ever other than zero.
    """
    images, labels = [read_idx(path) for path in paths[::2]], [read_idx(path) for path in paths[1::2]]
    x = np.concatenate(images).reshape(-1, 28 * 28).astype(np.float32) / 255
    names = [f"pixel_{row}_{column}" for row in range(28) for column in range(28)]
    data = Data(x, np.concatenate(labels).astype(np.int64), feature_names=names, target_name="label")
    if len(images) == 1:
        return data, ()
    return data, ((np.arange(len(images[0])), np.arange(len(images[0]), len(data))),)


def read_idx(path: Path) -> np.ndarray:
    """Return the bytes of a gzipped IDX file in the shape that its header states."""
    with gzip.open(path) as file:
        content = file.read()
    rank = content[3]
    shape = np.frombuffer(content, ">i4", rank, offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * rank).reshape(shape)


def _file(folder: str, name: str, home: str, sha256: str) -> PublishedFile:
    others = ("fashion_mnist/" + name, "fashion_mnist_test/" + name) if folder == "fashion-mnist" else ()
    return PublishedFile(f"{folder}/{name}", others, home + name, sha256)


_MNIST = tuple(
    _file("mnist", name, _MNIST_HOME, sha256)
    for name, sha256 in (
        ("train-images-idx3-ubyte.gz", "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
        ("train-labels-idx1-ubyte.gz", "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
        ("t10k-images-idx3-ubyte.gz", "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
        ("t10k-labels-idx1-ubyte.gz", "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
    )
)
_FASHION = tuple(
    _file("fashion-mnist", name, _FASHION_HOME, sha256)
    for name, sha256 in (
        ("train-images-idx3-ubyte.gz", "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
        ("train-labels-idx1-ubyte.gz", "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
        ("t10k-images-idx3-ubyte.gz", "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
        ("t10k-labels-idx1-ubyte.gz", "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
    )
)
_FASHION_SOURCE = "Xiao, Rasul & Vollgraf 2017, Fashion-MNIST; https://github.com/zalandoresearch/fashion-mnist"

IMAGE_SETS = (
    PublishedSet(
        "mnist",
        "classification",
        70_000,
        784,
        read_images,
        _MNIST,
        "LeCun, Cortes & Burges 1998, The MNIST database of handwritten digits",
        "CC BY-SA 3.0",
        tuple("0123456789"),
        published_splits=1,
    ),
    PublishedSet(
        "fashion-mnist",
        "classification",
        70_000,
        784,
        read_images,
        _FASHION,
        _FASHION_SOURCE,
        "MIT",
        _CLOTHES,
        published_splits=1,
    ),
    PublishedSet(
        "fashion-mnist-test",
        "classification",
        10_000,
        784,
        read_images,
        _FASHION[2:],
        f"{_FASHION_SOURCE}, test part",
        "MIT",
        _CLOTHES,
    ),
)
