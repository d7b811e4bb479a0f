"""One folder a class, arrays side by side, and the files that samples are made of."""

import os
import pickle

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
