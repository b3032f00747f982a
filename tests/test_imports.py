"""Who may import whom, and that importing does nothing slow."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import semioffline

PACKAGE = Path(semioffline.__file__).parent
FLOORS: tuple[tuple[set[str], ...], ...] = (
    ({"errors"},),
    ({"config"},),
    ({"files"},),
    ({"algorithm"},),
    ({"cuda"},),
    ({"policy"}, {"rewards"}, {"tasks"}),
    ({"scoring"},),
    ({"data"},),
    ({"methods"}, {"evaluation"}),
    ({"training"},),
    ({"experiments"},),
    ({"report"},),
    ({"bench"},),
    ({"cli"},),
    ({"__main__"},),
)
"""Packages from left to right. One imports from those on earlier floors; those that share a floor do not know each
other. Imports inside functions and under TYPE_CHECKING count."""

TORCH_ONLY = ("tensors", "masking", "sampling", "losses")
PLAIN_STRINGS = ("errors", "files", "rewards", "tasks")
WORKER = ("calls", "fast_decode", "named", "pool", "worker")
"""Modules of `scoring` that worker processes load: without torch."""
FILES = sorted(PACKAGE.rglob("*.py"))


def package_of(path: Path) -> str:
    """rewards/rouge.py and rewards/__init__.py -> rewards; config.py -> config; the package's own __init__ -> ''."""
    first = path.relative_to(PACKAGE).parts[0]
    return "" if first == "__init__.py" else first.removesuffix(".py")


def imports(path: Path, at_run_time: bool = False) -> list[str]:
    """Full names of what a file imports, also in functions, under TYPE_CHECKING and as a string that names a module.
    at_run_time: only what is imported when the file itself is."""
    found: list[str] = []

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            found.extend(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import in line {node.lineno}"
            found.extend(f"{node.module}.{alias.name}" for alias in node.names)
        elif at_run_time and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for child in node.orelse:
                visit(child)
        elif not at_run_time and isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.extend(re.findall(r"semioffline(?:\.[a-z_]+)+", node.value))
        elif not at_run_time or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            for child in ast.iter_child_nodes(node):
                visit(child)

    visit(ast.parse(path.read_text(encoding="utf-8")))
    return found


def own_packages(path: Path) -> set[str]:
    parts = [name.split(".") for name in imports(path)]
    return {p[1] for p in parts if p[0] == "semioffline" and len(p) > 1 and not p[1].startswith("__")}


def place_of(package: str) -> tuple[int, int]:
    places = [(f, s) for f, floor in enumerate(FLOORS) for s, names in enumerate(floor) if package in names]
    assert places, f"semioffline/{package} has no place in FLOORS: say who may import it"
    return places[0]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_left_only(path):
    package = package_of(path)
    if package == "":
        assert own_packages(path) <= {"config", "methods", "policy", "training"}, (
            "the public names, loaded when they are used"
        )
        assert not [name for name in imports(path, at_run_time=True) if name.startswith("semioffline")]
        return
    floor, side = place_of(package)
    for other in own_packages(path):
        their_floor, their_side = place_of(other)
        allowed = their_floor < floor or (their_floor, their_side) == (floor, side)
        assert allowed, f"{path.relative_to(PACKAGE)} imports {other}, which stands to its right"


def test_the_walk_sees_the_arrows_that_there_are():
    """A guard of the test itself: it would pass on an empty package too."""
    assert {"algorithm", "policy", "scoring"} <= own_packages(PACKAGE / "methods" / "semi_offline.py")
    assert "training" in {name for path in (PACKAGE / "cli").glob("*.py") for name in own_packages(path)}


def test_no_file_imports_itself_in_a_circle():
    modules = {path: ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in FILES}
    modules = {path: name.removesuffix(".__init__") for path, name in modules.items()}
    names = set(modules.values())

    def targets(path: Path) -> set[str]:
        found = {name if name in names else name.rpartition(".")[0] for name in imports(path, at_run_time=True)}
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
    names = imports(PACKAGE / "algorithm" / f"{module}.py", at_run_time=True)
    assert {name.split(".")[0] for name in names} - set(sys.stdlib_module_names) <= {"torch", "semioffline"}


PLAIN_FILES = [p for p in FILES if package_of(p) in PLAIN_STRINGS or (package_of(p) == "scoring" and p.stem in WORKER)]


@pytest.mark.parametrize("path", PLAIN_FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_rewards_tasks_and_worker_processes_see_strings(path):
    heavy = {name.split(".")[0] for name in imports(path, at_run_time=True)} & {"torch", "transformers", "datasets"}
    assert not heavy, f"{path.relative_to(PACKAGE)} imports {heavy} at module level"


def test_the_trainer_names_no_method():
    named = [name for name in imports(PACKAGE / "training" / "trainer.py") if name.startswith("semioffline.methods.")]
    assert set(named) <= {
        f"semioffline.methods.{name}" for name in ("base.BaseMethod", "registry.config_class", "registry.load_method")
    }


def test_a_method_steps_no_optimizer():
    for path in [p for p in FILES if package_of(p) == "methods"]:
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
