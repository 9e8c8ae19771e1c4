"""MNIST and Fashion-MNIST: 28 x 28 grey images as rows of 784 values in [0, 1], with the published test part."""

import gzip
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pyrobnn.data.in_memory import Data
from pyrobnn.datasets.published import PublishedFile, PublishedSet, Splits


def read_images(paths: Sequence[Path]) -> tuple[Data, Splits]:
    """Return the images and labels of pairs of IDX files: the test part, or the training part and then the test part.

    The data are not to be standardised: pixels share a scale, and some of them are almost always zero.
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


def _files(home: str, folders: Sequence[str], checksums: Sequence[str]) -> tuple[PublishedFile, ...]:
    names = [f"{part}-{kind}-ubyte.gz" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]
    return tuple(
        PublishedFile(tuple(f"{folder}/{name}" for folder in folders), home + name, sha256)
        for name, sha256 in zip(names, checksums, strict=True)
    )


_MNIST = _files(
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    ["mnist"],
    [
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    ],
)
_FASHION = _files(
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    ["fashion-mnist", "fashion_mnist", "fashion_mnist_test"],
    [
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    ],
)
_SOURCE = "Xiao, Rasul & Vollgraf 2017, Fashion-MNIST; https://github.com/zalandoresearch/fashion-mnist"
_LECUN = "LeCun, Cortes & Burges 1998, The MNIST database of handwritten digits"
_CLOTHES = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")


def _set(
    name: str, files: tuple[PublishedFile, ...], source: str, licence: str, classes: Sequence[str], *, splits: int
) -> PublishedSet:
    rows = 60_000 * splits + 10_000
    return PublishedSet(
        name, "classification", rows, 784, read_images, files, source, licence, tuple(classes), published_splits=splits
    )


IMAGE_SETS = (
    _set("mnist", _MNIST, _LECUN, "CC BY-SA 3.0", "0123456789", splits=1),
    _set("fashion-mnist", _FASHION, _SOURCE, "MIT", _CLOTHES, splits=1),
    _set("fashion-mnist-test", _FASHION[2:], f"{_SOURCE}, test part", "MIT", _CLOTHES, splits=0),
)
