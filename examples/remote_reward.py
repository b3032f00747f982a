"""A reward behind a web service: many requests at once, a limit on their time, another try when one fails.

The service runs in this file, and fails now and then as services do. Yours is a URL.
"""

import asyncio
import json
import random
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from start import run

from semioffline.rewards.limits import Retry
from semioffline.tasks import ads


class Remote:
    """POST {"texts": [...], "category": [...]} -> {"scores": [...]}, in pieces that run side by side."""

    name = "remote_clicks"

    def __init__(self, url, seconds=5.0, piece=64, at_once=4):
        self.url, self.seconds, self.piece = url, seconds, piece
        self.gate = asyncio.Semaphore(at_once)
        self.send = Retry(self.post, attempts=5, wait=0.05)  # each request by itself; what else fails stops training

    async def __call__(self, completions, category, **columns):
        starts = range(0, len(completions), self.piece)
        parts = [(completions[n : n + self.piece], category[n : n + self.piece]) for n in starts]
        answers = await asyncio.gather(*(self.ask(*part) for part in parts))
        return [score for answer in answers for score in answer]

    async def ask(self, texts, category):
        body = json.dumps({"texts": texts, "category": category}).encode()
        async with self.gate:
            return await asyncio.to_thread(self.send, body=body)

    def post(self, body):
        request = urllib.request.Request(self.url, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=self.seconds) as answer:  # one request's limit
            return json.load(answer)["scores"]


class Service(BaseHTTPRequestHandler):
    luck = random.Random(0)

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.luck.random() < 0.05:
            return self.send_error(503)
        scores = ads.click_rate(completions=asked["texts"], category=asked["category"])
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"scores": scores}).encode())

    def log_message(self, *args):
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    service = Remote(f"http://127.0.0.1:{server.server_port}/score")
    run(service, reward_timeout=60.0)  # a limit for the whole call, so that nothing waits for ever
    server.shutdown()
