"""Who may import whom and set what, and that importing does nothing slow."""

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
    ({"validation"}, {"printing"}),
    ({"config"},),
    ({"storage"},),
    ({"engines"},),
    ({"algorithm"},),
    ({"cuda"},),
    ({"policy"}, {"rewards"}, {"tasks"}),
    ({"scoring"},),
    ({"data"},),
    ({"methods"}, {"evaluation"}),
    ({"training"},),
    ({"experiments"},),
    ({"bench"},),
    ({"report"},),
    ({"cli"},),
    ({"__main__"},),
)
"""Packages from left to right. One imports from those on earlier floors; those that share a floor do not know each
other. Imports inside functions and under TYPE_CHECKING count."""

TORCH_ONLY = ("tensors", "masking", "sampling", "losses")
PLAIN_STRINGS = ("errors", "printing", "storage", "rewards", "tasks", "validation")
WORKER = ("calls", "fast_decode", "named", "pool", "worker")
"""Modules of `scoring` that worker processes load: without torch."""
FILES = sorted(PACKAGE.rglob("*.py"))
OTHER_FILES = sorted(
    p for folder in ("tests", "benchmarks", "examples") for p in PACKAGE.parents[1].glob(f"{folder}/**/*.py")
)

MAY_SET = {
    # PyTorch: what a Function keeps for its backward, gradients, a layer of a model
    "algorithm/deferred.py": {"ctx.deferred", "ctx.types"},
    "cuda/trunk.py": {"ctx.recording", "parameter.grad"},
    "policy/checks.py": {"module.training"},
    "policy/loading.py": {"head.weight", "module.p", "module.config", "peft_config.trainable_token_indices", "place.*"},
    # the one place that replaces the forward of a module, and puts it back
    "cuda/replaced.py": {"owner.*"},
    # gradients; the trainer's own optimizer and accelerator, which go when it goes
    "cuda/update.py": {"p.grad", "optimizer.step", "accelerator.clip_grad_norm_"},
    # Transformers: an output, a setting of the tokenizer that is put back, arguments, the state of a run
    "policy/policy.py": {"output.last_hidden_state"},
    "policy/tokens.py": {"self.tokenizer.truncation_side"},
    "training/checkpoints.py": {
        "self.state.best_model_checkpoint",
        "self.args.eval_on_start",
        "control.should_training_stop",
        "control.should_save",
        "stopping.early_stopping_patience_counter",
    },
    "training/trainer.py": {
        "args.metric_for_best_model",
        "loader.device",
        "self.accelerator.state.dynamo_plugin.backend",
    },
    "experiments/best_checkpoint.py": {"control.should_evaluate"},
    "experiments/runs.py": {"args.eval_on_start"},
    "experiments/timing.py": {"control.should_training_stop"},
    # parts of a tokenizer and a model that are made here
    "bench/models.py": {"backend.pre_tokenizer", "backend.post_processor"},
    "tasks/ads.py": {
        "tokenizer.pre_tokenizer",
        "tokenizer.post_processor",
        "model.generation_config.forced_bos_token_id",
    },
    # a copy of a field
    "cli/options.py": {"action.choices", "action.type", "field.metadata"},
    # Ray: what it prints about workers that died, which is reported here in one line
    "engines/ray_cluster.py": {"ray._private.worker.*"},
    # the error of a stream that has no name; the width of a terminal
    "printing.py": {"console.width", "problem.filename"},
    # sacrebleu: what its signature says about references
    "rewards/bleu.py": {"self._metric.num_refs"},
    "rewards/chrf.py": {"self._metric.num_refs"},
    # what a user's function may do to the process: it is put back, and an early end counts as an error
    "cli/process.py": {"os.*"},
    "rewards/containment.py": {"sys.stdout", "sys.stderr"},
    # a decorator of the same file
    "rewards/surface.py": {"function.signature"},
}
"""Attributes of other objects than `self` that a file may set. There is no other way, or the object is made there."""
MAY_CHANGE = {"policy/attention.py": {"ALL_ATTENTION_FUNCTIONS"}, "engines/actor.py": {"os"}}
"""Tables of another module that a file may change. It puts back what was there; a worker's process is our own."""


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
        assert own_packages(path) <= {"config", "evaluation", "methods", "policy", "report", "training"}, (
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


def attributes_set(path: Path) -> set[str]:
    """`object.name` for each attribute of another object than self that a file sets or deletes; `object.*` where the
    name is not known."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            found.add((ast.unparse(node.value), node.attr))
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1].strip("_") in ("setattr", "delattr"):
            found.add((ast.unparse(node.args[0]), "*"))
    return {f"{owner}.{name}" for owner, name in found if owner not in ("self", "cls")}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_no_module_sets_an_attribute_of_another_modules_object(path):
    allowed = MAY_SET.get(str(path.relative_to(PACKAGE)), set())
    assert attributes_set(path) == allowed, "an object has methods for what others may change"


def test_the_walk_sees_attributes_that_are_set(tmp_path):
    (tmp_path / "one.py").write_text(
        "self.a = cls.b = 1\nx.c, self.d.e = 1, 2\nx.f += 1\nfor x.g in (): pass\nwith a as x.h: pass\ndel x.i\n"
        "setattr(x, 'j', 1)\nobject.__setattr__(y, n, 1)\nsetattr(self, 'k', 1)\nx.l: int = 1\nx.m\nx[0] = 1\n"
    )
    assert attributes_set(tmp_path / "one.py") == {"self.d.e", "x.*", "y.*", *(f"x.{name}" for name in "cfghil")}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_no_module_changes_a_table_of_another(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imported = {
        (alias.asname or alias.name).split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    changed = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            changed.add(ast.unparse(node.value).split(".")[0].split("[")[0].split("(")[0])
    assert changed & imported == MAY_CHANGE.get(str(path.relative_to(PACKAGE)), set())


def names_in(path: Path) -> set[str]:
    """What a file defines itself."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    found = {node.name for node in ast.walk(tree) if isinstance(node, kinds)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.id if isinstance(node, ast.Name) else node.attr)
    return found


DEFINED = {".".join(p.relative_to(PACKAGE.parent).with_suffix("").parts): names_in(p) for p in FILES}


@pytest.mark.parametrize("path", [*FILES, *OTHER_FILES], ids=lambda p: str(p.relative_to(PACKAGE.parents[1])))
def test_a_name_is_imported_from_where_it_is_defined(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module in DEFINED:
            missing = {alias.name for alias in node.names} - DEFINED[node.module]
            assert not missing, f"{node.module} does not define {missing}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_no_module_reads_a_private_name_of_another(path):
    """Those of PyTorch and Transformers do not count: no file here defines them."""
    own = names_in(path)
    others = set().union(*DEFINED.values()) - own
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) else []
        names += [node.attr] if isinstance(node, ast.Attribute) else []
        private = {name for name in names if name.startswith("_") and not name.startswith("__")}
        assert not private & others, f"{path.relative_to(PACKAGE)} reads {private & others}"


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
        f"semioffline.methods.shared.{name}"
        for name in ("base.BaseMethod", "registry.config_class", "registry.load_method")
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
