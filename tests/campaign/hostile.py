"""Data files, recipes and model folders that nobody should give, and what some people do."""

import gzip
import json
import os
import socket
from pathlib import Path

ROWS = [{"prompt": "one two", "completion": "a b"}, {"prompt": "three", "completion": "c d"}]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)


def row(**more: object) -> bytes:
    return json.dumps({"prompt": "a", "completion": "b"} | more).encode() + b"\n"


def raw(text: str) -> bytes:
    """A row with JSON as it is written here."""
    return b'{"prompt":"a","completion":"b",' + text.encode("utf-8", "surrogatepass") + b"}\n"


GOOD: dict[str, bytes] = {
    "byte-order-mark.jsonl": b"\xef\xbb\xbf" + LINES.encode(),
    "carriage-returns.jsonl": LINES.replace("\n", "\r\n").encode(),
    "empty-lines.jsonl": LINES.replace("\n", "\n\n").encode(),
    "no-end.jsonl": LINES.rstrip().encode(),
    "nul-in-text.jsonl": row(prompt="a\0b"),
    "null-references.jsonl": row(references=None),
    "nan-elsewhere.jsonl": raw('"x":NaN'),
    "escapes.jsonl": row(prompt="\x1b[31m a", completion="[/b] b"),
    "directions.jsonl": row(prompt="\u202eabc", completion="\u2028 x"),
    "astral.jsonl": row(prompt="😀", completion="😀 𝕏"),
    "long-word.jsonl": row(prompt="a" * 100_000),
    "empty-lists.jsonl": row(x=[]),
    "empty-objects.jsonl": row(x={}),
    "UPPER.JSONL": LINES.encode(),
    "lines.json": LINES.encode(),
    "one.json": row(),
    "carriage-returns.csv": b"prompt,completion\r\na,b\r\n",
    "byte-order-mark.csv": b"\xef\xbb\xbfprompt,completion\na,b\n",
    "old-mac.csv": b"prompt,completion\ra,b\r",
    "long.csv": b'prompt,completion\n"' + b"a" * 200_000 + b'",b\n',
    "tabs.tsv": b"prompt\tcompletion\na\tb\n",
    "two-parts.jsonl.gz": gzip.compress(row()) * 2,
}
BAD: dict[str, bytes] = {
    "utf-16.jsonl": LINES.encode("utf-16"),
    "latin-1.jsonl": row() + '{"prompt":"ä","completion":"b"}\n'.encode("latin-1"),
    "old-mac.jsonl": LINES.replace("\n", "\r").encode(),
    "nul-after.jsonl": LINES.encode() + b"\0\0\0",
    "empty.jsonl": b"",
    "blank.jsonl": b"\n\n\n",
    "number.jsonl": b"1\n",
    "list.jsonl": b"[1]\n",
    "null.jsonl": b"null\n",
    "text.jsonl": b'"x"\n',
    "cut.jsonl": row() + b'{"prompt": "a", "comp',
    "mixed-prompts.jsonl": row() + row(prompt=1),
    "mixed-numbers.jsonl": row(x=1) + row(x="y"),
    "mixed-lists.jsonl": row(x=[1]) + row(x={"y": 1}),
    "large-int.jsonl": raw('"x":' + "9" * 30),
    "larger-int.jsonl": raw('"x":' + "9" * 5000),
    "half-a-character.jsonl": raw('"x":"\\ud83d"'),
    "half-a-name.jsonl": raw('"\\ud83d":1'),
    "surrogate-bytes.jsonl": raw('"x":"\ud83d"'),
    "a-key-twice.jsonl": raw('"prompt":"c"'),
    "no-completion.jsonl": b'{"prompt":"a"}\n',
    "references-text.jsonl": row(references="x"),
    "references-mixed.jsonl": row(references=[1, None]),
    "no-prompt.jsonl": row(prompt=""),
    "spaces.jsonl": row(completion="   "),
    "null-completion.jsonl": row(completion=None),
    "true.jsonl": row(prompt=True),
    "object.jsonl": row(prompt={"a": 1}),
    "our-names.jsonl": row(completions="x", completion_ids=[1], prompts=1),
    "self.jsonl": row(self=2),
    "deep.jsonl": raw('"x":' + "[" * 500 + "]" * 500),
    "deeper.jsonl": b"[" * 100_000 + b"\n",
    "infinite-candidates.jsonl": raw('"candidates":["q"],"candidate_rewards":[1e400]'),
    "many-columns.jsonl": row(**{f"c{n}": 1 for n in range(1200)}),
    "comma.json": b'[{"prompt":"a","completion":"b"},]',
    "wrapped.json": b'{"data":[{"prompt":"a","completion":"b"}]}',
    "empty-list.json": b"[]",
    "empty-object.json": b"{}",
    "spaces.json": b"  ",
    "empty.csv": b"",
    "names-only.csv": b"prompt,completion\n",
    "open-quote.csv": b'prompt,completion\n"a,b\nc',
    "wide.csv": b"prompt,completion\na,b,c\n",
    "a-name-twice.csv": b"prompt,prompt,completion\na,b,c\n",
    "semicolons.csv": b"prompt;completion\na;b\n",
    "no-names.csv": b",\na,b\n",
    "not-packed.jsonl.gz": LINES.encode(),
    "cut.jsonl.gz": gzip.compress(LINES.encode())[:-9],
    "junk-after.jsonl.gz": gzip.compress(LINES.encode()) + b"junk",
    "empty.jsonl.gz": gzip.compress(b""),
    "cut.jsonl.xz": b"\xfd7zXZ",
    "cut.jsonl.bz2": b"BZh9",
    "cut.jsonl.zst": b"(\xb5/\xfd",
    "empty.parquet": b"",
    "not.parquet": b"PAR1" * 10,
    "no-ending": LINES.encode(),
    "text.txt": LINES.encode(),
}
NO_FILES = ("folder.jsonl", "pipe.jsonl", "nowhere.jsonl", "loop.jsonl", "socket.jsonl", "/dev/zero", "/proc/self/mem")
NO_FILES += ("..", ".", "~nobody/x.jsonl", "x" * 300 + ".jsonl", "", " ", "a\0b.jsonl", "hub/no-such-dataset")

RECIPES: dict[str, bytes] = {
    "empty": b"",
    "null": b"null",
    "a list": b"- 1\n",
    "a number": b"1",
    "a tab": b"\tseed: 1\n",
    "UTF-16": "seed: 1".encode("utf-16"),
    "Latin-1": "reward: ä".encode("latin-1"),
    "NUL": b"seed: 1\0",
    "code": b'seed: !!python/object/apply:os.system ["touch owned"]\n',
    "a name": b"seed: !!python/name:os.system\n",
    "a module": b"seed: !!python/module:os\n",
    "binary": b"seed: !!binary aGk=\n",
    "a set": b"seed: !!set {1}\n",
    "a date": b"seed: 2026-01-01\n",
    "a wrong date": b"seed: !!timestamp x\n",
    "an int that is none": b"seed: !!int x\n",
    "a key twice": b"seed: 1\nseed: 2\n",
    "an unknown setting": b"sed: 1\n",
    "a number as a name": b"1: 2\n",
    "a list as a name": b"? [1]\n: 2\n",
    "null as a name": b"~: 1\n",
    "a large int": b"seed: " + b"9" * 5000,
    "infinity": b"learning_rate: .inf\n",
    "NaN": b"learning_rate: .nan\n",
    "a map": b"seed: {a: 1}\n",
    "two documents": b"seed: 1\n---\nseed: 2\n",
    "an alias of itself": b"a: &a [*a]\n",
    "an alias that is not there": b"a: *b\n",
    "merge": b"a: &a {seed: 1}\n<<: *a\n",
    "deep": b"a: " + b"[" * 3000 + b"]" * 3000,
    "billion laughs": b"a: &a [x,x,x,x,x,x,x,x,x]\n"
    + b"".join(b"%c: &%c [%s]\n" % (c, c, b",".join([b"*%c" % (c - 1)] * 9)) for c in range(98, 110)),
    "maps of maps": b"a: &a {x: 1}\n"
    + b"".join(
        b"%c: &%c {%s}\n" % (c, c, b",".join(b"k%d: *%c" % (n, c - 1) for n in range(9))) for c in range(98, 110)
    ),
    "long": b"seed: 1 # " + b"x" * 200_000,
    "escapes": b'reward: "\\e[31mred"\n',
    "a path": b"reward: ../../x.py:f\n",
    "half a character": b'reward: "\\ud83d"\n',
    "a list of lists": b"reward: [[rouge1]]\n",
    "a list of nothing": b"reward: [null]\n",
    "a list of maps": b"reward: [{a: 1}]\n",
    "a list for one value": b"seed: [1, 2]\n",
    "columns of maps": b"columns: {prompt: {a: 1}}\n",
    "a point for a whole number": b"seed: 1.0\n",
    "yes for a number": b"seed: yes\n",
    "dashes": b"learning-rate: 0.1\n",
    "a flag": b"--seed: 1\n",
    "an unknown tag": b"seed: !mine 1\n",
    "another version": b"%YAML 9.9\n---\nseed: 1\n",
    "a name with a space that none sees": "\u00a0seed: 1\n".encode(),
    "many names": b"".join(b"k%d: 1\n" % n for n in range(11_000)),
}

_LINE = b'{"prompt":"a","prediction":"b","references":["c"],"rouge1":0.5}\n'
_HUGE = b"9" * 400
RUN = {"predictions.jsonl": _LINE, "metrics.jsonl": b'{"step":1,"loss":1}\n'}
"""A run folder that is good."""
ODD_RUNS: dict[str, tuple[str, bytes]] = {
    # one of its files, and what is in it: what cannot be shown is left out
    "half a line": ("predictions.jsonl", _LINE + b"{"),
    "no references": ("predictions.jsonl", b'{"prompt":"a","prediction":"b","references":null,"rouge1":null}\n'),
    "mixed references": ("predictions.jsonl", b'{"prompt":"a","prediction":"b","references":[1,null],"x":[1]}\n'),
    "a text as a metric": ("predictions.jsonl", b'{"prompt":"a","prediction":"b","rouge1":"x"}\n'),
    "infinite metrics": ("predictions.jsonl", b'{"prompt":"a","prediction":"b","x":1e400,"y":NaN,"z":-Infinity}\n'),
    "a huge metric": ("predictions.jsonl", b'{"prompt":"a","prediction":"b","rouge1":' + _HUGE + b"}\n"),
    "half a character": ("predictions.jsonl", b'{"prompt":"\\ud83d","prediction":"b"}\n'),
    "texts in the log": ("metrics.jsonl", b'{"step":"x","loss":[]}\n'),
    "NaN in the log": ("metrics.jsonl", b'{"step":-5,"loss":NaN}\n{"step":-5,"loss":1e999}\n'),
    "a huge step": ("metrics.jsonl", b'{"step":' + _HUGE + b',"loss":1,"time/train":1e999}\n'),
    "no step": ("metrics.jsonl", b'{"step":null}\n{"loss":true}\n'),
    "a log of a list": ("metrics.jsonl", b"[]\n"),
    "a log of NUL": ("metrics.jsonl", b"\0" * 50),
    "a number of metrics": ("result.json", b'{"metrics":1,"seconds":"x","steps":"y","seed":[1]}'),
    "metrics of texts": ("result.json", b'{"metrics":{"rouge1":{"mean":"x","low":[],"high":{}}}}'),
    "endless seconds": ("result.json", b'{"seconds":1e999,"steps":' + _HUGE + b"}"),
    "odd changes": ("result.json", b'{"changes":{"x":{"before":"a"}},"method":{},"cost_per_input":[]}'),
    "odd weights": ("settings.json", b'{"method":[],"reward_weights":3,"num_samples":"x"}'),
    "odd settings": ("config.yaml", b"method: {a: 1}\nreward_weights: [x]\n"),
    "a list as settings": ("config.yaml", b"- 1"),
}
BAD_RUNS: dict[str, tuple[str, bytes]] = {
    "result: empty": ("result.json", b""),
    "result: null": ("result.json", b"null"),
    "result: deep": ("result.json", b"[" * 50_000),
    "result: no UTF-8": ("result.json", b"\xff"),
    "result: a job that is none": ("result.json", b'{"kind":"job"}'),
    "result: models in a list": ("result.json", b'{"kind":"job","models":[]}'),
    "result: a number as a model": (
        "result.json",
        b'{"kind":"job","title":"","reward":"","sentence":"","about":{"command":"","commit":null,"versions":{}},'
        b'"models":{"initial":1}}',
    ),
    "comparison: empty": ("comparison.json", b""),
    "comparison: a map": ("comparison.json", b"{}"),
    "comparison: a number of methods": ("comparison.json", b'{"methods":1}'),
    "comparison: a number as a method": ("comparison.json", b'{"methods":{"ft":1}}'),
    "comparison: no metrics": (
        "comparison.json",
        b'{"metrics":[],"percent":{},"reference":"ft","methods":{},"wall_seconds":0,'
        b'"about":{"command":"","commit":null,"versions":{}}}',
    ),
    "settings: cut": ("settings.json", b"{"),
    "settings: a list": ("settings.json", b"[]"),
    "config: an alias of itself": ("config.yaml", b"a: &a [*a]"),
    "config: code": ("config.yaml", b"!!python/name:os.system"),
}
BAD_NOTES: dict[str, tuple[str, bytes]] = {
    # read for the report alone
    "ratings: empty": ("ratings.json", b""),
    "ratings: a number": ("ratings.json", b'{"tables":1}'),
    "ratings: numbers": ("ratings.json", b'{"tables":[1]}'),
    "ratings: nothing in a table": ("ratings.json", b'{"tables":[{}]}'),
    "ratings: a number as the name": (
        "ratings.json",
        b'{"tables":[{"id":1,"protocol":"overall","raters":[],"inputs":0,"ratings":0}]}',
    ),
    "about: a list": ("about.json", b"[]"),
    "about: a number": ("about.json", b'{"about":1}'),
    "about: versions in a list": ("about.json", b'{"about":{"command":"","commit":null,"versions":[]}}'),
    "about: a number as data": (
        "about.json",
        b'{"about":{"command":"","commit":null,"versions":{}},"data":{"train":1}}',
    ),
}
KEY: dict[str, object] = {
    "id": "a",
    "protocol": "overall",
    "criteria": ["overall"],
    "systems": [{"label": "x", "folder": ""}],
    "items": [{"prompt": "p", "systems": [0]}],
}
RATING: dict[str, object] = {"item": 0, "output": 0, "criterion": "overall", "score": 1}
BAD_KEYS: list[dict[str, object]] = [
    # what differs from KEY
    *({"id": value} for value in (1, ["a"], None)),
    *({"protocol": value} for value in ("x", 1, ["overall"])),
    *({"criteria": value} for value in (1, [1], "overall")),
    *({"systems": value} for value in ([], 1, [1], [{}], [{"label": 1, "folder": 2}])),
    *({"items": value} for value in (1, [1], [{"prompt": "p", "systems": 0}], [{"prompt": ["p"], "systems": [0]}])),
    *({"items": [{"prompt": "p", "systems": value}]} for value in ([7], ["0"], [-1], [None])),
]
BAD_RATINGS: list[object] = [
    *(1, None, [], {}),
    *(RATING | {"item": value} for value in (True, -1, 9, "0", 0.5, None)),
    *(RATING | {"output": value} for value in (True, -1, None, "0", [0])),
    *(RATING | {"score": value} for value in (True, "1", None, [1], {}, 1e300, float("nan"), 0.5, 2)),
    *(RATING | {"criterion": value} for value in (["overall"], {}, None, "x")),
]


def write_data(folder: Path) -> None:
    """All of GOOD and BAD, and what NO_FILES names."""
    for name, content in (GOOD | BAD).items():
        (folder / name).write_bytes(content)
    (folder / "folder.jsonl").mkdir()
    os.mkfifo(folder / "pipe.jsonl")
    (folder / "nowhere.jsonl").symlink_to("nothing")
    (folder / "loop.jsonl").symlink_to("loop.jsonl")
    before = Path.cwd()
    os.chdir(folder)  # the name of a socket must be short
    socket.socket(socket.AF_UNIX).bind("socket.jsonl")
    os.chdir(before)
