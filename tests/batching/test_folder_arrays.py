"""One folder a class, arrays side by side, and the files that samples are made of."""

import functools
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch

from ladle.batching import Arrays, Folder, load_array, load_image, load_text, loader
from ladle.batching.files import load_by_suffix
from ladle.errors import ClosedError, ConfigError, FormatError

Image = pytest.importorskip("PIL.Image", reason="not installed: pip install pillow")


def picture(path, colour, size=(6, 4)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)


@pytest.fixture
def folder(tmp_path):
    picture(tmp_path / "root/dog/b.png", (255, 0, 0))
    picture(tmp_path / "root/dog/deep/a.PNG", (0, 255, 0))
    picture(tmp_path / "root/cat/1.png", (0, 0, 255))
    (tmp_path / "root/cat/notes.csv").write_text("no image")
    (tmp_path / "root/cat/.hidden.png").write_text("no image")
    (tmp_path / "root/readme.txt").write_text("no class")
    return tmp_path / "root"


def test_a_folder_lists_its_classes_in_order(folder):
    data = Folder(folder)
    assert data.classes == ["cat", "dog"]
    assert data.labels.tolist() == [0, 1, 1]
    assert [os.path.relpath(data.describe(i), folder) for i in range(3)] == ["cat/1.png", "dog/b.png", "dog/deep/a.PNG"]
    image, label = data[1]
    assert (image.shape, image.dtype, label) == ((3, 4, 6), torch.float32, 1)
    assert image[:, 0, 0].tolist() == [1.0, 0.0, 0.0]
    assert len(pickle.loads(pickle.dumps(data))) == 3


def test_a_link_that_leads_back_is_followed_once(folder):
    (folder / "dog/again").symlink_to(folder / "dog")
    assert len(Folder(folder)) == 3


def test_a_folder_without_what_it_needs_is_named(folder, tmp_path):
    (folder / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"root/empty: expected a file of this class, found none that ends in \.bmp"):
        Folder(folder)
    with pytest.raises(ConfigError, match="expected a folder a class, found none in it"):
        Folder(folder / "empty")
    with pytest.raises(ConfigError, match="expected one with a folder a class, found none at"):
        Folder(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="found a file at"):
        Folder(folder / "readme.txt")


def test_a_broken_image_is_named_or_skipped(folder):
    (folder / "cat/1.png").write_bytes(b"\x89PNG\r\n\x1a\nbroken")
    with pytest.raises(
        FormatError, match=r"cat/1\.png: sample 0: expected a file that can be loaded, found UnidentifiedImageError"
    ):
        Folder(folder)[0]
    data = Folder(folder, on_error="skip", transform=lambda image: image.mean())
    batches = list(loader(data, batch_size=3, workers=0, verbose=False))
    assert batches[0][1].tolist() == [1, 1]
    assert data.skipped == 1


def test_images_texts_and_arrays_are_loaded_as_float32(tmp_path):
    picture(tmp_path / "a.png", (10, 20, 30), size=(8, 4))
    assert load_image(str(tmp_path / "a.png"), size=(2, 6)).shape == (3, 2, 6)
    assert load_image(str(tmp_path / "a.png"), size=5, mode="L").shape == (1, 5, 5)
    assert load_image(str(tmp_path / "a.png"))[:, 0, 0].tolist() == pytest.approx([10 / 255, 20 / 255, 30 / 255])
    np.save(tmp_path / "a.npy", np.arange(3, dtype=">f8"))
    assert load_array(str(tmp_path / "a.npy")).dtype == torch.float32
    assert load_array(str(tmp_path / "a.npy"), dtype=None).dtype == torch.float64
    np.save(tmp_path / "i.npy", np.arange(3, dtype=np.uint16))
    assert load_array(str(tmp_path / "i.npy")).dtype == torch.int64
    (tmp_path / "t.txt").write_bytes(b"\xef\xbb\xbfh\xc3\xa4")
    assert load_by_suffix(str(tmp_path / "t.txt")) == "hä"
    (tmp_path / "t.txt").write_bytes(b"ab\xff")
    with pytest.raises(FormatError, match="@ byte 2: text: expected UTF-8, found the byte 0xff"):
        load_text(str(tmp_path / "t.txt"))
    with pytest.raises(ConfigError, match=r"load: expected \.npy, an image or \.txt to load by themselves"):
        load_by_suffix("a.wav")
    np.save(tmp_path / "o.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(FormatError, match=r"array: expected an \.npy file of numbers, found Object arrays cannot be loaded"):
        load_array(str(tmp_path / "o.npy"))
    np.savez(tmp_path / "z.npz", a=np.arange(2))
    (tmp_path / "z.npz").rename(tmp_path / "z.npy")
    with pytest.raises(FormatError, match=r"found an archive of several \(\.npz\)"):
        load_array(str(tmp_path / "z.npy"))


def test_arrays_are_mapped_and_give_copies(tmp_path):
    x, y = np.arange(24, dtype=np.float64).reshape(6, 4), np.arange(6) % 2
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    with Arrays(tmp_path / "x.npy", tmp_path / "y.npy") as data:
        assert isinstance(data._arrays[0], np.memmap)
        assert data.in_memory
        assert data.labels.tolist() == y.tolist()
        sample, label = data[2]
        assert (sample.dtype, sample.tolist(), label) == (torch.float32, [8.0, 9.0, 10.0, 11.0], 0)
        sample.zero_()
        assert data[2][0].tolist() == [8.0, 9.0, 10.0, 11.0]
        assert [one[0].tolist() for one in data.__getitems__([5, 0, -1])] == [x[5].tolist(), x[0].tolist(), x[5].tolist()]
        again = pickle.loads(pickle.dumps(data))
        assert isinstance(again._arrays[0], np.memmap)
        assert again[1][0].tolist() == data[1][0].tolist()
        again.close()
    with pytest.raises(ClosedError, match="these arrays are closed"):
        data[0]
    data.close()


def test_arrays_take_the_form_they_were_given_in():
    x, y = np.ones((3, 2), dtype=np.float32), np.array([0.5, 1.5, 2.5])
    assert Arrays(x)[0].tolist() == [1.0, 1.0]
    named = Arrays({"x": x, "y": y})[1]
    assert sorted(named) == ["x", "y"]
    assert named["y"].dtype == torch.float32
    assert float(named["y"]) == 1.5
    assert Arrays(y, dtype=None)[0].dtype == torch.float64
    (batch,) = loader(Arrays({"x": x, "y": y}), batch_size=3, workers=0, verbose=False)
    assert batch["x"].shape == (3, 2)


def test_arrays_that_do_not_fit_together_are_named(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros(3))
    with pytest.raises(ConfigError, match=r"arrays: expected one length, found 3 of .*x\.npy, 4 of array 1"):
        Arrays(tmp_path / "x.npy", np.zeros(4))
    for given, message in (
        ((), "expected at least one, found none"),
        ((np.zeros((0, 2)),), "expected at least one sample, found none"),
        ((np.array(["a"]),), "expected numbers, one entry a sample, found <U1"),
        ((np.float64(3),), "found float64 of shape \\(\\)"),
    ):
        with pytest.raises(ConfigError, match=message):
            Arrays(*given)
    (tmp_path / "bad.npy").write_bytes(b"")
    with pytest.raises(FormatError, match=r"bad\.npy: array: expected an \.npy file of numbers"):
        Arrays(tmp_path / "bad.npy")


# --- more of folders ---


def files_of(data):
    return [os.path.relpath(data.describe(i), data.root) for i in range(len(data))]


def test_a_link_that_leads_up_labels_no_other_class(folder):
    whole = files_of(Folder(folder))
    (folder / "dog/up").symlink_to("..")
    (folder / "dog/deep/top").symlink_to(folder.parent)
    (folder / "dog/deep/self").symlink_to(".")
    data = Folder(folder)
    assert [name for name in files_of(data) if not name.startswith("dog/deep/top/")] == whole
    assert not [name for name in files_of(data) if "/root/" in name]  # the way down again


def test_what_is_hidden_is_no_class_and_no_file(folder):
    (folder / ".git").mkdir()
    (folder / "dog/.ipynb_checkpoints").mkdir()
    picture(folder / "dog/.ipynb_checkpoints/b.png", (0, 0, 0))
    data = Folder(folder)
    assert data.classes == ["cat", "dog"]
    assert len(data) == 3


def test_suffixes_are_told_in_any_way_but_one(folder):
    assert len(Folder(folder, suffixes=["PNG"])) == len(Folder(folder, suffixes={".png"})) == 3
    assert len(Folder(folder, load=str)) == 4  # any file, where the loader is one's own
    for wrong in (".png", []):
        with pytest.raises(ConfigError, match="suffixes: expected several"):
            Folder(folder, suffixes=wrong)


def test_a_validation_folder_numbers_its_classes_as_the_training_folder_does(folder, tmp_path):
    picture(tmp_path / "val/dog/1.png", (0, 0, 0))
    assert Folder(tmp_path / "val").labels.tolist() == [0]
    val = Folder(tmp_path / "val", classes=Folder(folder).classes)
    assert (val.classes, val.labels.tolist()) == (["cat", "dog"], [1])
    with pytest.raises(ConfigError, match="root/cat: expected one of the 1 classes given, found another"):
        Folder(folder, classes=["dog"])


UNPRIVILEGED = """
import encodings.utf_8_sig, os, sys  # what would be imported later must be there before the user changes
import PIL.Image
os.chdir(sys.argv[1])
from ladle.batching import Folder, Table
from ladle.errors import LadleError
if os.geteuid() == 0:
    os.seteuid(65534)
for make in (lambda: Folder("root"), lambda: Table("list.csv", path="file", root=".")[0]):
    try:
        print("made", make())
    except LadleError as error:
        print(error)
"""


def test_a_folder_that_may_not_be_read_is_no_empty_one(folder):
    here = folder.parent
    (here / "list.csv").write_text("file\nroot/dog/deep/a.PNG\n")
    here.chmod(0o755)  # relative paths need no more
    (folder / "dog/deep").chmod(0)
    try:
        told = subprocess.run([sys.executable, "-c", UNPRIVILEGED, str(here)], capture_output=True, text=True, check=True).stdout
    finally:
        (folder / "dog/deep").chmod(0o755)
    first, second = told.splitlines()
    assert first == "root/dog/deep: expected a folder that can be read, found: Permission denied"
    assert second.startswith(
        "./root/dog/deep/a.PNG: row 0 of list.csv: expected a file that can be loaded, found PermissionError: "
    )


def test_a_folder_tells_what_it_is(folder):
    data = Folder(folder)
    assert str(data) == f"{folder}: 3 files of 2 classes, read when they are asked for"
    before = data.fingerprint
    (folder / "cat/1.png").rename(folder / "cat/2.png")
    assert Folder(folder).fingerprint != before


# --- more of images ---


def test_grey_images_of_16_bits_keep_their_greys(tmp_path):
    grey = np.array([[0, 255], [30_000, 65_535]], dtype=np.uint16)
    for name in ("a.png", "a.tiff"):
        Image.fromarray(grey).save(tmp_path / name)
        found = load_image(str(tmp_path / name))
        assert found.shape == (3, 2, 2)
        assert torch.allclose(found[2], torch.from_numpy(grey.astype(np.float32)) / 65_535)
        assert load_image(str(tmp_path / name), mode="L", size=1).shape == (1, 1, 1)
        with pytest.raises(FormatError, match="pixels: expected 8 bits a channel for CMYK"):
            load_image(str(tmp_path / name), mode="CMYK")
    Image.fromarray(np.ones((2, 2), dtype=np.float32)).save(tmp_path / "f.tiff")
    with pytest.raises(FormatError, match=r"pixels: expected 8 bits .* found mode F"):
        load_image(str(tmp_path / "f.tiff"))


def test_palettes_and_transparency_need_no_warning(tmp_path):
    image = Image.new("P", (4, 4))
    image.putpalette([200, 0, 0] * 256)
    image.save(tmp_path / "p.png", transparency=b"\x00\x80")
    assert load_image(str(tmp_path / "p.png"))[:, 0, 0].tolist() == pytest.approx([200 / 255, 0, 0])
    Image.new("1", (4, 4), 1).save(tmp_path / "1.png")
    assert load_image(str(tmp_path / "1.png"), mode="L").unique().tolist() == [1.0]


def test_what_is_asked_of_an_image_wrongly_is_named_and_never_skipped(tmp_path):
    picture(tmp_path / "root/a/1.png", (1, 2, 3))
    for options, message in (
        ({"size": 0}, "size: expected at least 1 pixel each way, found 0"),
        ({"size": (3, -1)}, r"size: expected at least 1 pixel each way, found \(3, -1\)"),
        ({"mode": "grey"}, "mode: expected one of RGB, L, .* found 'grey'"),
    ):
        with pytest.raises(ConfigError, match=message):
            Folder(tmp_path / "root", load=functools.partial(load_image, **options), on_error="skip")[0]
    resized = Folder(tmp_path / "root", load=functools.partial(load_image, size=(2, 5)))
    assert resized[0][0].shape == (3, 2, 5)
    assert not resized.seed_samples  # nothing random in it


# --- more of arrays ---


def test_many_at_once_are_what_each_is(tmp_path):
    rng = np.random.default_rng(2)
    arrays = {
        "u": rng.integers(0, 9, (9, 2)).astype(np.uint16),
        "b": rng.random(9) < 0.5,
        "h": rng.random((9, 1)).astype(np.float16),
        "f": rng.random(9),
        "big": rng.random((9, 2)).astype(">f4"),
        "label": rng.integers(0, 2, 9).astype(np.uint8),
    }
    data = Arrays(arrays)
    for many, one in zip(data.__getitems__([8, 0, -2]), (data[8], data[0], data[7]), strict=True):
        assert many.keys() == one.keys() == arrays.keys()
        for name in arrays:
            assert type(many[name]) is type(one[name])
            assert torch.equal(torch.as_tensor(many[name]), torch.as_tensor(one[name]))
    assert [data[0][name].dtype for name in "uhf"] == [torch.int64, torch.float32, torch.float32]
    assert type(data[0]["b"]) is int
    assert data.labels.tolist() == arrays["label"].tolist()
    data.__getitems__([1])[0]["big"].zero_()
    assert data[1]["big"].tolist() == arrays["big"][1].tolist()


def test_entries_are_one_s_own_also_of_arrays_in_memory():
    held = np.ones((3, 2), dtype=np.float32)
    data = Arrays(held)
    data[1].zero_()
    data.__getitems__([2])[0].zero_()
    assert held.all()


def test_labels_of_a_dict_are_found_by_their_name():
    x, y = np.zeros((3, 2)), np.array([1, 0, 1])
    assert Arrays({"label": y, "x": x}).labels.tolist() == [1, 0, 1]
    assert Arrays({"x": x, "which": y}).labels.tolist() == [1, 0, 1]
    assert Arrays({"label": np.zeros(3), "which": y}).labels is None
    assert Arrays(y).labels is None


def test_more_arrays_that_are_none(tmp_path):
    assert Arrays(torch.ones(3, 2, requires_grad=True))[0].tolist() == [1.0, 1.0]
    for given, options, message in (
        (torch.zeros(3, dtype=torch.bfloat16), {}, "arrays: expected numbers, one entry a sample, found Tensor: .*BFloat16"),
        ([[1, 2], [3]], {}, "found list: .*inhomogeneous"),
        (tmp_path / "x.npy", {}, r"arrays: expected an \.npy file, found none at .*x\.npy"),
        (tmp_path, {}, "found a folder at"),
        (np.zeros(3), {"dtype": "int8"}, "dtype: expected one of None, float16, float32, float64, found 'int8'"),
    ):
        with pytest.raises(ConfigError, match=message):
            Arrays(given, **options)


def test_arrays_tell_what_they_are(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((3, 2)))
    assert str(Arrays(tmp_path / "x.npy", np.arange(3))) == f"3 samples of {tmp_path}/x.npy: float64 (3, 2); array 1: int64 (3,)"
