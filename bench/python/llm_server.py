"""A pretended server of vLLM's dialect: a first token after FIRST ms, then one each STEP ms.

    llm_server.py FIRST STEP

It listens on a free port of 127.0.0.1 and prints its URL. It serves until it is killed.
"""

import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FIRST, STEP = (float(ms) / 1000 for ms in sys.argv[1:3])
GET = {
    "/health": "",
    "/v1/models": '{"object": "list", "data": [{"id": "m", "max_model_len": 8192}]}',
    "/metrics": 'vllm:cache_config_info{enable_prefix_caching="False"} 1.0\n',
}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def do_GET(self):
        body = GET.get(self.path)
        self.send_response(404 if body is None else 200)
        self.send_header("content-length", str(len(body or "")))
        self.end_headers()
        self.wfile.write((body or "").encode())

    def event(self, data):
        chunk = f"data: {data}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        prompt, most = asked["prompt"], asked["max_tokens"]
        began, seed = time.monotonic(), sum(prompt)
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for i in range(most):
            time.sleep(max(0.0, began + FIRST + i * STEP - time.monotonic()))
            reason = "length" if i + 1 == most else None
            choice = {"index": 0, "text": "", "finish_reason": reason}
            choice["token_ids"] = [(seed + i) % 32000]
            self.event(json.dumps({"choices": [choice], "usage": None}))
        usage = {"prompt_tokens": len(prompt), "completion_tokens": most}
        self.event(json.dumps({"choices": [], "usage": usage}))
        self.event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(f"http://127.0.0.1:{server.server_port}", flush=True)
server.serve_forever()
