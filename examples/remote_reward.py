"""A reward that scales separately from training: several servers behind HTTP, or Ray actors.

    python examples/remote_reward.py --service ray --servers 2

A client sends the parts of a batch to the servers in turn. Each request has a time limit and is tried again elsewhere
when it fails, and only some are under way at a time. A server gathers requests into one call of the model, and refuses
when too many wait, so that a slow judge is never flooded. The servers run in this file, and fail now and then as
servers do. Yours are URLs, or actors with GPUs of their own.
"""

import asyncio
import itertools
import json
import queue
import random
import threading
import urllib.error
import urllib.request
from concurrent.futures import Future
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from start import parser, run

from semioffline.tasks import ads


class Busy(Exception):
    """A server has too many requests: wait, and send this one again."""


class Remote:
    """An async reward. servers: async functions (texts, category) -> scores."""

    name = "remote_clicks"

    def __init__(self, servers, piece=64, at_once=4, seconds=5.0, attempts=6, wait=0.05):
        self.turn = itertools.cycle(servers)
        self.piece, self.seconds, self.attempts, self.wait = piece, seconds, attempts, wait
        self.gate = asyncio.Semaphore(at_once)  # of this process; several training processes have one each

    async def __call__(self, completions, category, **columns):
        starts = range(0, len(completions), self.piece)
        parts = [(completions[n : n + self.piece], category[n : n + self.piece]) for n in starts]
        answers = await asyncio.gather(*(self.ask(*part) for part in parts))
        return [score for answer in answers for score in answer]

    async def ask(self, texts, category):
        problem = None
        async with self.gate:
            for attempt in range(self.attempts):  # each at the next server
                try:
                    return await asyncio.wait_for(next(self.turn)(texts, category), self.seconds)
                except (Busy, OSError, HTTPException, TimeoutError) as error:  # anything else stops training
                    problem = error
                    await asyncio.sleep(self.wait * 2**attempt * random.uniform(0.5, 1.5))
        raise RuntimeError(f"no server has answered in {self.attempts} attempts: {problem!r}")


class Gathered:
    """A model behind a queue: what waits there is scored in one call. A full queue refuses."""

    def __init__(self, score, most_texts=512, most_waiting=16):
        self.score, self.most_texts = score, most_texts
        self.queue = queue.Queue(most_waiting)
        threading.Thread(target=self.work, daemon=True).start()

    def __call__(self, texts, category):
        answer = Future()
        try:
            self.queue.put_nowait((texts, category, answer))
        except queue.Full:
            raise Busy from None
        return answer.result()

    def work(self):
        while True:
            asked = [self.queue.get()]
            while sum(len(texts) for texts, _, _ in asked) < self.most_texts and not self.queue.empty():
                asked.append(self.queue.get())
            try:
                scores = self.score([t for texts, _, _ in asked for t in texts], [c for _, cs, _ in asked for c in cs])
            except Exception as error:
                for _, _, answer in asked:
                    answer.set_exception(error)
                continue
            for texts, _, answer in asked:
                answer.set_result(scores[: len(texts)])
                scores = scores[len(texts) :]


# ---- behind HTTP ----


class Service(BaseHTTPRequestHandler):
    """POST {"texts": [...], "category": [...]} -> {"scores": [...]}; 503 when it is busy."""

    model = None
    luck = random.Random(0)

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.luck.random() < 0.05:
            return self.send_error(500)
        try:
            scores = self.model(asked["texts"], asked["category"])
        except Busy:
            return self.send_error(503)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"scores": scores}).encode())

    def log_message(self, *args):
        pass


def http_server(url, seconds=5.0):
    def post(texts, category):
        body = json.dumps({"texts": texts, "category": category}).encode()
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=seconds) as answer:
                return json.load(answer)["scores"]
        except urllib.error.HTTPError as error:
            if error.code == 503:
                raise Busy from error
            raise

    return lambda texts, category: asyncio.to_thread(post, texts, category)


def start_http(number):
    for _ in range(number):
        kind = type("Service", (Service,), {"model": Gathered(ads.click_rate)})
        server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield http_server(f"http://127.0.0.1:{server.server_port}/score")


# ---- as Ray actors ----


class Judge:
    """An actor that loads its model once. Requests wait in its threads."""

    def __init__(self):
        self.model = Gathered(ads.click_rate)

    def score(self, texts, category):
        return self.model(texts, category)


def ray_server(actor):
    from ray.exceptions import RayActorError, RayTaskError

    async def ask(texts, category):
        try:
            return await actor.score.remote(texts, category)
        except RayActorError as error:  # it has died: Ray starts it again
            raise OSError("the actor is not there") from error
        except RayTaskError as error:
            if isinstance(error.cause, Busy):
                raise Busy from error
            raise

    return ask


def start_ray(number):
    import ray

    if not ray.is_initialized():
        ray.init(log_to_driver=False, include_dashboard=False)  # or address="auto": the cluster of this machine
    remote = ray.remote(num_cpus=0, max_restarts=-1, max_concurrency=16)(Judge)  # num_gpus=1 for a judge on a GPU
    actors = [remote.remote() for _ in range(number)]
    return [ray_server(actor) for actor in actors]


if __name__ == "__main__":
    parser.add_argument("--service", choices=("http", "ray"), default="http")
    parser.add_argument("--servers", type=int, default=2)
    options = parser.parse_args()
    start = start_ray if options.service == "ray" else start_http
    run(Remote(list(start(options.servers))), reward_timeout=60.0)  # a limit for the whole call
