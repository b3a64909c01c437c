# See `command.rs`.
import http.server, json, os, signal, subprocess, sys, time
habit, port_file = sys.argv[1], sys.argv[2]
if habit == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "1000"])
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def whole(self, body):
        body = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        self.whole({"data": [{"id": "m", "max_model_len": 4096}]})
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        def chunk(text):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(text), text.encode()))
        def event(ids, finish):
            chunk("data: %s\n\n" % json.dumps(
                {"choices": [{"token_ids": ids, "finish_reason": finish}]}))
        event([5], None)
        trial = asked["max_tokens"] == 2
        if habit == "hangs" and not trial:
            print("token 5 is out", flush=True)
            time.sleep(1000)
        event([6], "length" if trial else "stop")
        chunk("data: %s\n\n" % json.dumps({"choices": [], "usage": {
            "prompt_tokens": len(asked["prompt"]), "completion_tokens": 2}}))
        chunk("data: [DONE]\n\n")
        chunk("")
    def log_message(self, *a): pass
class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
server = Server(("127.0.0.1", int(sys.argv[3])), Handler)
with open(port_file + ".new", "w") as f:
    f.write("%d %d" % (os.getpid(), child.pid))
os.rename(port_file + ".new", port_file)
print("serving", flush=True)
server.serve_forever()
