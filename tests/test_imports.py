"""Who may import whom, and that importing does nothing slow."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import semioffline

PACKAGE = Path(semioffline.__file__).parent
FLOORS: tuple[tuple[set[str], ...], ...] = (
    ({"errors"},),
    ({"algorithm"},),
    ({"policy", "cuda"}, {"rewards", "tasks"}),
    ({"data", "scoring", "methods"},),
    ({"config", "training", "evaluation"},),
    ({"experiments", "bench"},),
    ({"report", "cli", "__main__"},),
)
"""errors <- algorithm <- policy, cuda · rewards, tasks <- data, scoring, methods <- training, ... <- report, cli.
A room may import from its own set and from every set on a floor before; sets on one floor do not know each other."""

TORCH_ONLY = ("tensors", "masking", "sampling", "losses")
PLAIN_STRINGS = ("errors", "rewards", "tasks")
WORKER = ("calls", "worker", "pool", "fast_decode")
"""Modules of `scoring` that worker processes load."""
FILES = sorted(PACKAGE.rglob("*.py"))


def room_of(path: Path) -> str:
    """rewards/rouge.py and rewards/__init__.py -> rewards; config.py -> config; the package's __init__ -> ''."""
    first = path.relative_to(PACKAGE).parts[0]
    return "" if first == "__init__.py" else first.removesuffix(".py")


def imports(path: Path, anywhere: bool = True) -> list[str]:
    """Full names of what a file imports, without `if TYPE_CHECKING`; at module level only, or in functions too."""
    found: list[str] = []

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            found.extend(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import in line {node.lineno}"
            found.extend(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for child in node.orelse:
                visit(child)
        elif anywhere or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            for child in ast.iter_child_nodes(node):
                visit(child)

    visit(ast.parse(path.read_text(encoding="utf-8")))
    return found


def own_rooms(path: Path) -> set[str]:
    parts = [name.split(".") for name in imports(path)]
    return {p[1] for p in parts if p[0] == "semioffline" and len(p) > 1 and not p[1].startswith("__")}


def place_of(room: str) -> tuple[int, int]:
    places = [(f, s) for f, floor in enumerate(FLOORS) for s, rooms in enumerate(floor) if room in rooms]
    assert places, f"semioffline/{room} has no place in FLOORS: say who may import it"
    return places[0]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_left_only(path):
    room = room_of(path)
    if room == "":
        assert not own_rooms(path), "the package itself loads its rooms when a name is used"
        return
    floor, side = place_of(room)
    for other in own_rooms(path):
        their_floor, their_side = place_of(other)
        allowed = their_floor < floor or (their_floor, their_side) == (floor, side)
        assert allowed, f"{path.relative_to(PACKAGE)} imports {other}, which stands to its right"


def test_the_walk_sees_the_arrows_that_there_are():
    """A guard of the test itself: it would pass on an empty package too."""
    assert {"algorithm", "policy"} <= own_rooms(PACKAGE / "methods" / "semi_offline.py")
    assert "training" in {room for path in (PACKAGE / "cli").glob("*.py") for room in own_rooms(path)}


def test_no_file_imports_itself_in_a_circle():
    modules = {path: ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in FILES}
    modules = {path: name.removesuffix(".__init__") for path, name in modules.items()}
    names = set(modules.values())

    def targets(path: Path) -> set[str]:
        found = {name if name in names else name.rpartition(".")[0] for name in imports(path, anywhere=False)}
        return (found & names) - {"semioffline"}

    graph = {modules[path]: targets(path) for path in FILES}
    done: set[str] = set()

    def follow(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join([*trail, name])
        if name not in done:
            for other in graph[name]:
                follow(other, (*trail, name))
            done.add(name)

    for name in graph:
        follow(name, ())


@pytest.mark.parametrize("module", TORCH_ONLY)
def test_the_mathematics_needs_torch_only(module):
    outside = {name.split(".")[0] for name in imports(PACKAGE / "algorithm" / f"{module}.py")} - set(
        sys.stdlib_module_names
    )
    assert outside <= {"torch", "semioffline"}


PLAIN_FILES = [p for p in FILES if room_of(p) in PLAIN_STRINGS or (room_of(p) == "scoring" and p.stem in WORKER)]


@pytest.mark.parametrize("path", PLAIN_FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_rewards_and_tasks_see_strings(path):
    heavy = {name.split(".")[0] for name in imports(path, anywhere=False)} & {"torch", "transformers", "datasets"}
    assert not heavy, f"{path.relative_to(PACKAGE)} imports {heavy} at module level"


def test_the_trainer_names_no_method():
    named = [name for name in imports(PACKAGE / "training" / "trainer.py") if name.startswith("semioffline.methods.")]
    assert set(named) <= {"semioffline.methods.load_method", "semioffline.methods.BaseMethod"}


def test_a_method_steps_no_optimizer():
    for path in [p for p in FILES if room_of(p) == "methods"]:
        assert not [name for name in imports(path) if "optim" in name]
        calls = [n.func for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)]
        names = {call.attr for call in calls if isinstance(call, ast.Attribute)}
        assert not names & {"backward", "zero_grad"}, path.name


def loaded_after(code: str) -> set[str]:
    script = f"{code}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    return set(done.stdout.split())


def test_importing_the_package_its_rewards_and_tasks_loads_neither_torch_nor_transformers():
    modules = [
        ".".join(p.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
        for p in [PACKAGE / "__init__.py", *PLAIN_FILES]
    ]
    loaded = loaded_after(f"import {', '.join(modules)}")
    assert {"semioffline", "semioffline.rewards.rouge", "semioffline.tasks.ads"} <= loaded
    assert not loaded & {"torch", "transformers", "datasets"}


def test_the_public_names_are_there_when_used():
    assert {"Policy", "SemiOfflineConfig", "SemiOfflineTrainer"} <= set(semioffline.__all__)
    for name in semioffline.__all__:
        assert getattr(semioffline, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Polcy'"):
        _ = semioffline.Polcy
