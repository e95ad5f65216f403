import io
import tarfile

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from zoo import datasets

WNIDS = ("n01440764", "n01443537", "n01484850", "n01491361")  # labels 0 … 3
TRAIN, TEST = 48, 12
SPLITS = {"train": 43, "validation": 5, "train+validation": TRAIN, "test": TEST}


def picture(number, size, kind="JPEG"):
    """Bytes of an image file: left to right the red, top to bottom the green value
    grow from 0 to 255; the blue value is that of the image."""
    width, height = size
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[..., 0] = np.linspace(0, 255, width).round()
    pixels[..., 1] = np.linspace(0, 255, height).round()[:, None]
    pixels[..., 2] = 5 * number
    image, file = Image.fromarray(pixels), io.BytesIO()
    mode = {"grey": "L", "CMYK": "CMYK"}.get(kind, "RGB")
    format = "PNG" if kind == "PNG" else "JPEG"
    options = {} if kind == "PNG" else {"quality": 95, "subsampling": 0}
    image.convert(mode).save(file, format, **options)
    return file.getvalue()


def write_tar(path, files):
    with tarfile.open(path, "w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


@pytest.fixture(scope="module")
def imagenet_dir(tmp_path_factory):
    """What TensorFlow Datasets makes of two small archives like those of ImageNet."""
    tfds = pytest.importorskip("tensorflow_datasets")
    path = tmp_path_factory.mktemp("imagenet")
    manual = path / "downloads" / "manual"
    manual.mkdir(parents=True)
    kinds = {7: "grey", 8: "PNG", 9: "CMYK"}
    classes = {wnid: {} for wnid in WNIDS}
    for i in range(TRAIN):
        wnid = WNIDS[i % 4]
        size = 300 + 13 * (i % 7), 260 + 11 * (i % 5)
        content = picture(i, size, kinds.get(i, "JPEG"))
        classes[wnid][f"{wnid}_{i}.JPEG"] = content
    for wnid, files in classes.items():
        write_tar(path / wnid, files)
    tars = {f"{wnid}.tar": (path / wnid).read_bytes() for wnid in WNIDS}
    write_tar(manual / "ILSVRC2012_img_train.tar", tars)
    files = {
        f"ILSVRC2012_val_{i + 1:08}.JPEG": picture(i, (512, 384)) for i in range(TEST)
    }
    write_tar(manual / "ILSVRC2012_img_val.tar", files)
    config = tfds.download.DownloadConfig(num_shards=5)
    builder = tfds.builder("imagenet2012", data_dir=path)
    builder.download_and_prepare(download_config=config)
    assert len(builder.info.splits["train"].filenames) == 5
    return path


def test_sizes(imagenet_dir):
    for split, size in SPLITS.items():
        d = datasets.load("imagenet2012", split, 8, data_dir=imagenet_dir)
        print(split, len(d), d.element_spec)
        for x, y in d:
            print(x.shape, y.numpy(), x.numpy()[...,2].mean(axis=(1,2))/5)
