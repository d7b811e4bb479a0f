"""The house as a test: imports point up the list and never down, and importing does nothing."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import ladle

SRC = Path(ladle.__file__).parent
ORDER = [
    "errors",
    "text",
    "tokens",
    "corpus",
    "order",
    "rows",
    "feed",
    "nn",
    "weights",
    "batching",
    "train",
    "doctor",
    "view",
    "bench",
    "cli",
]
TORCH_ROOMS = {
    "feed/torch.py",
    "feed/jax.py",
    "feed/masks.py",
    "feed/dataloader.py",
    "feed/dataset.py",
    "feed/turns.py",
    "bench/contenders.py",
}  # and the whole of nn, weights, batching, train


def modules():
    return [path for path in SRC.rglob("*.py") if "__pycache__" not in path.parts]


def room(module):
    return module.split(".")[1] if module.count(".") else ""


def imports(tree):
    """(module, line, whether it runs on import) of every import; those under TYPE_CHECKING do not count."""
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    top = {id(node) for node in ast.iter_child_nodes(tree)}
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno, id(node) in top
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide where things are"
            yield node.module, node.lineno, id(node) in top


def downward(path, tree):
    mine = path.relative_to(SRC).parts[0].removesuffix(".py")
    if mine in {"__init__", "__main__"}:
        return []
    found = []
    for module, line, _ in imports(tree):
        if module.startswith("ladle.") and ORDER.index(room(module)) > ORDER.index(mine):
            found.append(f"{path.relative_to(SRC)}:{line} imports {module}")
    return found


def test_imports_point_up_the_list():
    assert not [fault for path in modules() for fault in downward(path, ast.parse(path.read_text("utf-8")))]


def test_the_architecture_test_sees_a_wrong_import():
    assert downward(SRC / "order" / "stream.py", ast.parse("from ladle.feed.feed import Feed"))
    assert not downward(SRC / "feed" / "feed.py", ast.parse("from ladle.order.stream import Order"))


def test_every_room_is_on_the_list():
    rooms = {path.relative_to(SRC).parts[0].removesuffix(".py") for path in modules()} - {"__init__", "__main__"}
    assert rooms <= set(ORDER)


def test_extras_are_imported_at_the_top_only_in_their_rooms():
    extras = {"torch", "jax", "safetensors", "matplotlib", "tokenizers"}
    faults = []
    for path in modules():
        place = path.relative_to(SRC).as_posix()
        if place in TORCH_ROOMS or place.split("/")[0] in {"nn", "weights", "batching", "train"}:
            continue
        faults += [
            f"{place}:{line}"
            for module, line, top in imports(ast.parse(path.read_text("utf-8")))
            if top and module.split(".")[0] in extras
        ]
    assert not faults


def test_only_the_command_line_reads_the_environment():
    faults = []
    for path in modules():
        if path.name == "cli.py":
            continue
        faults += [
            f"{path.relative_to(SRC)}:{node.lineno}"
            for node in ast.walk(ast.parse(path.read_text("utf-8")))
            if (isinstance(node, ast.Attribute) and node.attr in {"environ", "getenv"})
            or (isinstance(node, ast.Name) and node.id == "environ")
        ]
    assert not faults


def test_no_assert_validates_anything_in_src():
    assert not [
        f"{path.relative_to(SRC)}:{node.lineno}"
        for path in modules()
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Assert)
    ]


def test_import_ladle_loads_neither_torch_nor_numpy_nor_anything_else():
    code = "import sys; before = set(sys.modules); import ladle; print(sorted(set(sys.modules) - before - {'__future__', 'typing', '_typing'}))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not {"torch", "jax", "numpy", "tiktoken", "threading"} & set(ast.literal_eval(out))


def test_the_public_face_is_what_it_says():
    missing = [name for name in ladle.__all__ if not hasattr(ladle, name)]
    assert not missing
    assert set(ladle.__all__) == {*ladle._WHERE, "__version__"}
    with pytest.raises(AttributeError, match="open_sesame"):
        _ = ladle.open_sesame


def test_the_extras_that_errors_name_exist():
    project = tomllib.loads((SRC.parents[1] / "pyproject.toml").read_text("utf-8"))["project"]
    named = {
        node.args[2].value
        for path in modules()
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "MissingExtra"
    }
    assert {"torch", "train", "hf"} <= named <= set(project["optional-dependencies"])


def test_errors_pickle_and_keep_their_words():
    import pickle

    from ladle import errors

    samples = [
        errors.FormatError("a.bin", 12, "size", 4, 3, "prepare it again"),
        errors.MissingExtra("a feed", "torch", "torch"),
        errors.ConfigError("x: expected 1, found 2"),
    ]
    for error in samples:
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error)
        assert str(again) == str(error)
    assert str(samples[0]) == "a.bin @ byte 12: size: expected 4, found 3; prepare it again"
    assert str(samples[1]) == "a feed needs the package 'torch', which is not installed; pip install 'ladle[torch]'"
    assert {cls.__name__ for cls in errors.LadleError.__subclasses__()} == {
        "ConfigError",
        "FormatError",
        "StateError",
        "TextError",
        "TokenError",
        "ClosedError",
        "MissingExtra",
    }
