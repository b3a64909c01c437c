# A language model's server: python3 llm_server.py FOLDER NAME PORT
#
# It writes a line to FOLDER/NAME.asked for each prompt, except trials and warm-up samples, which
# want two tokens. While FOLDER/NAME.hold exists, it keeps these answers back. While FOLDER/NAME.busy
# exists, it answers prompts with 503, and queries well.
import http.server, json, os, sys, time

folder, name, port = sys.argv[1:]


def there(what):
    return os.path.exists(f"{folder}/{name}.{what}")


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def whole(self, status, body, *headers):
        body = json.dumps(body).encode()
        self.send_response(status)
        for key, value in [("content-length", str(len(body))), *headers]:
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.whole(200, {"data": [{"id": "llm", "max_model_len": 4096}]})

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if there("busy"):
            return self.whole(503, {"error": {"message": "starting"}}, ("retry-after", "1"))
        self.send_response(200)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        short = asked["max_tokens"] == 2
        if not short:
            with open(f"{folder}/{name}.asked", "a") as f:
                f.write(f"{os.getpid()}\n")
            while there("hold"):
                time.sleep(0.01)
        count = {"prompt_tokens": len(asked["prompt"]), "completion_tokens": 2}
        finish = "length" if short else "stop"
        for event in [
            {"choices": [{"token_ids": [5], "finish_reason": None}]},
            {"choices": [{"token_ids": [6], "finish_reason": finish}]},
            {"choices": [], "usage": count},
        ]:
            self.chunk("data: %s\n\n" % json.dumps(event))
        self.chunk("data: [DONE]\n\n")
        self.chunk("")

    def chunk(self, text):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(text), text.encode()))

    def log_message(self, *a):
        pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True


Server(("127.0.0.1", int(port)), Handler).serve_forever()
